"""Command line, environment variables and ini file to one Selection.

Every option has three sources, of which the first with a value wins: ``--aorta-NAME``, ``PYTEST_AORTA_NAME``, and
``aorta_NAME`` in the ini file.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.plugin.xdist_roles import is_controller, is_worker, worker_of_workers

if TYPE_CHECKING:
    import pytest

    from pytest_aorta.plan import Selection


class OptionError(ValueError):
    """A value that an option cannot take; the message names value, source and what would be valid."""


@dataclass(frozen=True)
class Option:
    """One option in its three spellings.

    ``repeat`` options take several values: repeated on the command line, lines in an ini file, ``;`` in a variable
    (or what the regular expression ``separator`` matches).
    """

    name: str
    parse: Callable[[str], Any]
    metavar: str
    help: str
    repeat: bool = False
    separator: str = ";"

    @property
    def is_switch(self) -> bool:
        """Whether it stands without a value on the command line."""
        return not self.metavar

    @property
    def flag(self) -> str:
        """Spelling on the command line."""
        return f"--aorta-{self.name}"

    @property
    def ini(self) -> str:
        """Spelling in an ini file, and the destination on the command line."""
        return f"aorta_{self.name.replace('-', '_')}"

    @property
    def variable(self) -> str:
        """Spelling in the environment."""
        return f"PYTEST_{self.ini.upper()}"


def _positive_int(text: str) -> int:
    # More digits than anything can be counted in; of some thousand, Python refuses to make a number.
    if not re.fullmatch(r"\+?[0-9]{1,18}", text.strip()) or int(text) < 1:
        raise ValueError("a whole number of at least 1")
    return int(text)


def _seed(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
        raise ValueError("a whole number of at least 0")
    return int(text)


def _slots(text: str) -> int:
    if text.strip() == "auto":
        return 0
    try:
        return _positive_int(text)
    except ValueError:
        raise ValueError("a whole number of at least 1, or auto") from None


def _devices(text: str) -> tuple[int, ...]:
    from pytest_aorta.runtime.resources.devices import parse_devices

    try:
        return parse_devices(text)
    except ValueError:
        raise ValueError("a list such as 0-3 or 0,2-4, or none") from None


def _number(text: str) -> float:
    """Not a number where the text is none: then it is in no range."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _seconds(text: str) -> float:
    if not 0 < _number(text) < math.inf:
        raise ValueError("a number of seconds above 0")
    return float(text)


def _grace(text: str) -> float:
    if not 0 <= _number(text) < math.inf:
        raise ValueError("a number of seconds, 0 for none")
    return float(text)


def _size(text: str) -> int:
    # ASCII, because without regard to case the Kelvin sign is a K, and then again none.
    found = re.fullmatch(r"(\d{1,18}(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    size = int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ")) if found else 0
    if not 0 < size < 2**63:  # what the system can count
        raise ValueError("a number of bytes above 0, such as 500M or 1.5G (K, M, G, T count in 1024s)")
    return size


def _switch(text: str) -> bool:
    value = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.strip().lower() not in value:
        raise ValueError("true or false")
    return value[text.strip().lower()]


def _choice(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"one of {', '.join(values)}")
        return text

    return parse


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError("a name")
    return text.strip()


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("names separated by commas")
    return names


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

#: What follows a separator between variables, which may also be a part of a value.
_NEXT_PAIR = r"(?=[A-Za-z_][A-Za-z0-9_]*=)"


def _pairs(text: str) -> dict[str, str]:
    """``K=V[,K=V]``; a comma starts a new pair only before ``NAME=``, so values may hold commas."""
    pairs = {}
    for part in re.split(f",{_NEXT_PAIR}", text):
        name, equals, value = part.partition("=")
        if not equals or not _VARIABLE.fullmatch(name) or "\0" in value:
            raise ValueError("NAME=VALUE[,NAME=VALUE...], a name being letters, digits and underscores")
        pairs[name] = value
    return pairs


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError("KEY=VALUE")
    return key.strip(), value


def _elastic(text: str) -> tuple[str, str]:
    from pytest_aorta.trials.elastic_options import parse_elastic

    key, _, value = text.partition("=")
    parse_elastic(key.strip(), value)
    return key.strip(), value


OPTIONS = (
    Option("workload", _name, "NAME", "run this registered workload; repeat for several", repeat=True),
    Option("trials", _positive_int, "N", "trials per cell (default 1)"),
    Option("environment", _name, "NAME", "registered environment; repeat for an axis (default local)", repeat=True),
    Option("mitigations", _names, "A,B", "one mitigation set; repeat for an axis (default none)", repeat=True),
    Option(
        "extra-env",
        _pairs,
        "K=V",
        "variables on top of all mitigations; K=V[,K=V], repeat",
        repeat=True,
        separator=f";{_NEXT_PAIR}",
    ),
    Option("steps", _positive_int, "N", "number of steps, for workloads that have this option"),
    Option("config", _key_value, "KEY=VALUE", "an option of the workload; repeat", repeat=True),
    Option("collect", _names, "A,B", "collectors: rocprof, numerics, amd_log"),
    Option("results-dir", _name, "DIR", "where results go (default results)"),
    Option("resume", _switch, "", "run only the trials that have no result of this very request yet"),
    Option("timeout", _seconds, "SEC", "deadline of a trial, from constructor to exit, and of its import"),
    Option("stall-timeout", _seconds, "SEC", "end a trial that reports no progress() for so long in setup() or run()"),
    Option("grace", _grace, "SEC", "between SIGTERM and SIGKILL for a trial that has to end (default 5)"),
    Option("memory", _size, "SIZE", "memory that each process of a trial may allocate, such as 8G"),
    Option("log-limit", _size, "SIZE", "of a longer log, only head and tail are kept (default 64M)"),
    Option(
        "isolation",
        _choice("fork", "spawn", "none"),
        "HOW",
        "fork: a fresh fork of a prepared process (default); spawn: a fresh interpreter per trial; "
        "none: in this process, for --pdb",
    ),
    Option("slots", _slots, "N", "trials at a time in one pytest process: a number, or auto (default 1)"),
    Option("own-cores", _switch, "", "give trials that run side by side cores of their own, and no more threads"),
    Option("devices", _devices, "LIST", "GPUs to lease to trials, such as 0-3; none hides all"),
    Option(
        "host",
        _name,
        "SPEC",
        "run trials on this host: popen, ssh=..., socket=... as xdist's --tx; repeat",
        repeat=True,
    ),
    Option("nproc", _positive_int, "N", "ranks of a distributed workload (default: its minimum)"),
    Option(
        "launcher",
        _choice("auto", "elastic", "torchrun", "external"),
        "HOW",
        "who starts the ranks: auto (default), elastic, torchrun, external (pytest itself is a rank)",
    ),
    Option(
        "elastic",
        _elastic,
        "KEY=VALUE",
        "an option of the agent that starts the ranks, such as max_restarts=1; repeat",
        repeat=True,
    ),
    Option("seed", _seed, "N", "random generators of trial i start equally in every cell, and in every such run"),
    Option(
        "order",
        _choice("interleaved", "grouped", "random"),
        "HOW",
        "interleaved over cells (default), grouped by cell, random",
    ),
    Option("registry-file", _name, "FILE", "JSON file with more mitigations and environments; repeat", repeat=True),
)


def add_options(parser: pytest.Parser) -> None:
    """Declare all options and their ini twins."""
    group = parser.getgroup("aorta", "trials of workloads (pytest-aorta)")
    for option in OPTIONS:
        if option.is_switch:
            group.addoption(option.flag, dest=option.ini, action="store_const", const="true", help=option.help)
        else:
            group.addoption(
                option.flag,
                dest=option.ini,
                action="append" if option.repeat else "store",
                default=None,
                metavar=option.metavar,
                help=option.help,
            )
        kind = "linelist" if option.repeat else "string"
        parser.addini(option.ini, f"same as {option.flag}", type=kind, default=None)  # type: ignore[arg-type]


def is_mentioned(config: pytest.Config, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether any option has a value from anywhere."""
    return any(
        getattr(config.option, option.ini, None) is not None
        or environ.get(option.variable)
        or config.getini(option.ini)
        for option in OPTIONS
    )


def read_selection(config: pytest.Config, environ: Mapping[str, str] = os.environ) -> Selection:
    """The Selection of a pytest run.

    Raises:
        OptionError: naming the value, where it came from and what would be valid.
    """
    from pytest_aorta.plan import Selection
    from pytest_aorta.trials.execution import Execution, Resources
    from pytest_aorta.trials.limits import Limits

    values = {option.ini: _read(option, config, environ) for option in OPTIONS}
    worker, workers = worker_of_workers(config)
    base = config.inipath.parent if config.inipath is not None else config.invocation_params.dir
    if values["aorta_slots"] == 0:
        values["aorta_slots"] = _automatic_slots(config, values["aorta_devices"])
    if values["aorta_elastic"] is not None:
        from pytest_aorta.trials.elastic_options import elastic_options

        values["aorta_elastic"] = elastic_options(dict(values["aorta_elastic"]))
    if values["aorta_results_dir"] is not None:
        values["aorta_results_dir"] = Path(values["aorta_results_dir"])

    def given(*names: str, **renamed: str) -> dict[str, Any]:
        """Values by field, of those options that have one; ``renamed`` maps fields to options of other names."""
        found = {field: values[f"aorta_{name}"] for field, name in [*zip(names, names, strict=True), *renamed.items()]}
        return {field: value for field, value in found.items() if value is not None}

    return Selection(
        **given("trials", "mitigations", "steps", "collect", "results_dir", "resume", "order"),
        **given(workloads="workload", environments="environment"),
        extra_env={name: value for pairs in values["aorta_extra_env"] or () for name, value in pairs.items()},
        config=dict(values["aorta_config"] or ()),
        registry_files=tuple(_path(text, base) for text in values["aorta_registry_file"] or ()),
        execution=Execution(**given("isolation", "launcher", "nproc", "elastic", "seed")),
        limits=Limits(**given("timeout", "stall_timeout", "grace", "memory", "log_limit")),
        resources=Resources(
            **given("slots", "devices", "own_cores"),
            hosts=_hosts(values["aorta_host"] or ()),
            workers=workers,
            worker=worker,
        ),
    )


def _automatic_slots(config: pytest.Config, devices: tuple[int, ...] | None) -> int:
    """One per device that may be leased, else one per physical core that pytest may use.

    One for an xdist worker, whose siblings are the other slots.
    """
    if is_worker(config) or is_controller(config):
        return 1
    if devices:
        return len(devices)
    import psutil

    return max(1, min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0))))


def _hosts(texts: tuple[str, ...]) -> tuple[str, ...]:
    """``2*popen`` is two of them."""
    if not texts:
        return ()
    from pytest_aorta.runtime.hosts.specs import expand_specs, without_values

    for text in texts:
        count = text.partition("*")[0]
        if count.isdecimal() and len(count) > 4:
            raise OptionError(f"--aorta-host: {count} hosts are not valid; expected at most 9999")
    try:
        return tuple(expand_specs(texts))
    except ValueError:
        pass
    try:  # for the message, without the values of variables: these may be secrets, and are never the mistake
        expand_specs([without_values(text) for text in texts])
    except ValueError as error:
        raise OptionError(f"--aorta-host: {error}") from None
    raise OptionError("--aorta-host: not valid")


def _path(text: str, base: Path) -> Path:
    """A file named on the command line is relative to the current directory, one in an ini file to that file."""
    try:
        path = Path(text).expanduser()
        return path if path.is_absolute() or path.exists() else base / path
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL in it, a user that does not exist
        raise OptionError(
            f"--aorta-registry-file: {text!r} is not valid; expected the path of a file: {error}"
        ) from None


def _read(option: Option, config: pytest.Config, environ: Mapping[str, str]) -> Any:
    """Parsed values of the first source that has some, a tuple for ``repeat`` options; ``None`` if none has."""
    given = getattr(config.option, option.ini, None)
    source = option.flag
    if given is None and environ.get(option.variable):
        text = environ[option.variable]
        given = [part for part in re.split(option.separator, text) if part.strip()] if option.repeat else text
        source = f"the environment variable {option.variable}"
    if given is None:
        given = config.getini(option.ini) or None
        source = f"{option.ini} in {config.inipath}"
    if given is None or given == []:
        return None
    texts = given if isinstance(given, list) else [given]
    parsed = tuple(_parse(option, text, source) for text in texts)
    return parsed if option.repeat else parsed[0]


def _parse(option: Option, text: str, source: str) -> Any:
    try:
        return option.parse(text)
    except ValueError as error:
        shown = _shown_pairs(text) if option.name == "extra-env" else repr(text)
        raise OptionError(f"{source}: {shown} is not valid; expected {error}") from None


def _shown_pairs(text: str) -> str:
    """What may be repeated of a text that is no ``K=V[,K=V]``: the wrong name, for all else may be a secret."""
    parts = [part.partition("=") for part in re.split(f",{_NEXT_PAIR}", text)]
    name, equals, value = next((part for part in parts if not _VARIABLE.fullmatch(part[0]) or not part[1]), parts[0])
    if not equals:
        return "a text without '='"
    # A secret in Base64 ends like that, and a name that nothing follows is more likely one.
    return repr(name) if value.strip("=") else "a text with nothing after its '='"
