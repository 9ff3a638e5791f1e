"""All settings of a run, each declared once with name, default, reader, and one sentence of help.

The option of pytest, its twins in an ini file and in the environment, the fields of ``RunRequest`` and the table in
``docs/reference/options.md`` follow from ``SETTINGS``.

pytest loads this module at every start, so it imports neither pydantic nor modules that do anything. Readers that
need one are given as ``module:function``, and imported when a value is read. A reader takes a text, as on the command
line, or a value from Python; it returns the value, or raises ``ValueError`` with what would be valid.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pytest_aorta.common import RequestError as RequestError

Reader = Callable[[Any], Any]

#: Longest text of a bad value in a message.
_SHOWN = 200

#: Most digits of a number: Python refuses to read some thousand.
_DIGITS = 18

#: Value of ``history`` for all earlier runs.
UNBOUNDED = sys.maxsize

#: The most trials of a cell that ``auto`` comes to.
MOST_OF_AUTO = 500

#: Most trials of each cell if a decision ends them, and no number is given.
TRIALS_UNTIL_DECIDED = 200

_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_MODULE = r"[^\W\d]\w*(\.[^\W\d]\w*)*"

#: Follows a separator between variables; otherwise the separator belongs to a value.
NEXT_PAIR = r"(?=[A-Za-z_][A-Za-z0-9_]*=)"

#: The expected form of variables, for messages.
PAIRS = "NAME=VALUE[,NAME=VALUE...], a name being letters, digits and underscores"


class OptionError(RequestError):
    """A wrong value of an option; the message names value, source and valid values."""


def taken(read: Reader, value: Any, source: str) -> Any:
    """Read a value; raise ``RequestError`` with the ``source``, the value and valid values if it is wrong."""
    __tracebackhide__ = True  # pytest would show the arguments
    try:
        return read(value)
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(f"{source}: {quoted(value)} is not valid; expected {error}") from None


def quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def optional(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def choice(*values: str) -> Reader:
    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in values:
            raise ValueError(f"one of {', '.join(values)}")
        return value

    return read


def _integer(value: Any, least: int) -> int | None:
    if isinstance(value, str):
        number = int(value) if re.fullmatch(rf"\s*\+?[0-9]{{1,{_DIGITS}}}\s*", value, re.ASCII) else None
    else:
        integral = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        number = operator.index(value) if integral else None
    return number if number is not None and least <= number < 10**_DIGITS else None


def _at_least(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = _integer(value, least)
        if number is None:
            raise ValueError(f"a whole number of at least {least}")
        return number

    return read


positive_int, whole = _at_least(1), _at_least(0)


def trials(value: Any) -> int | Literal["auto"]:
    number: int | Literal["auto"] | None = "auto" if value == "auto" else _integer(value, 1)
    if number is None:
        raise ValueError("a whole number of at least 1, or auto")
    return number


def number_of(value: Any) -> float:
    try:
        return math.nan if isinstance(value, bool) or not isinstance(value, str | numbers.Real) else float(value)
    except (ValueError, OverflowError):
        return math.nan


def _between(low: float, high: float, value: Any, valid: str) -> float:
    number = number_of(value)
    if not low < number < high:
        raise ValueError(valid)
    return number


#: Days, hours, minutes, seconds.
_DURATION = "".join(rf"(?:([0-9]+(?:\.[0-9]+)?){unit})?" for unit in "dhms")


def duration(value: Any) -> float:
    """Seconds; not a number where it is none."""
    match = re.fullmatch(_DURATION, value.strip(), re.ASCII) if isinstance(value, str) else None
    if match is None or not any(match.groups()):
        return number_of(value)
    return sum(float(part or 0) * unit for part, unit in zip(match.groups(), (86400, 3600, 60, 1), strict=True))


def seconds(value: Any) -> float:
    return _between(0, math.inf, duration(value), "a number of seconds above 0, or a time such as 5m or 1h30m")


def grace(value: Any) -> float:
    number = duration(value)
    return 0.0 if number == 0 else _between(0, math.inf, number, "a number of seconds from 0, or a time such as 1m")


def share(value: Any) -> float:
    text = value.strip() if isinstance(value, str) else ""
    number = number_of(text[:-1]) / 100 if text.endswith("%") else value
    return _between(0, 1, number, "a share above 0 and below 1, such as 5% or 0.05")


def size(value: Any) -> int:
    if isinstance(value, str):
        # ASCII, because without regard to case the Kelvin sign is a K, and then again none.
        match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", value.strip(), re.IGNORECASE | re.ASCII)
        number = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")) if match else None
    else:
        number = _integer(value, 1)
    if number is None or not 0 < number < 2**63:  # what the system can count
        raise ValueError("a number of bytes above 0, such as 500M or 1.5G (K, M, G, T count in 1024s)")
    return number


def history(value: Any) -> int:
    number = UNBOUNDED if value in ("all", UNBOUNDED) else _integer(value, 1)
    if number is None:
        raise ValueError("a whole number of at least 1, or all")
    return number


def slots(value: Any) -> tuple[int, bool]:
    """Trials at a time, 0 for ``auto``, and whether each has cores of its own."""
    count, own = value, False
    if isinstance(value, str):
        words = [word.strip() for word in value.split(",")]
        own = words[-1] == "own-cores"
        count = "auto" if words == ["own-cores"] else ",".join(words[:-1] if own else words)
    number = 0 if count == "auto" else _integer(count, 1)
    if number is None:
        raise ValueError("a whole number of at least 1, or auto; with cores of their own: 4,own-cores, or own-cores")
    return number, own


def devices(value: Any) -> tuple[int, ...]:
    """Ids, ascending; none hides all."""
    from importlib import import_module

    text = value
    if isinstance(value, list | tuple | range):
        ids = [_integer(each, 0) for each in value]
        text = ("," if None in ids else ",".join(map(str, ids))) or "none"
    try:
        devices: tuple[int, ...] = import_module("pytest_aorta.runtime.resources.devices").parse_devices(
            text if isinstance(text, str) else ""
        )
    except ValueError:
        raise ValueError("a list such as 0-3 or 0,2-4, or none") from None
    return devices


def shard(value: str) -> tuple[int, int]:
    """Part I of N, from 1."""
    number, slash, count = value.strip().partition("/")
    shard = (_integer(number, 1), _integer(count, 1))
    if not slash or shard[0] is None or shard[1] is None or shard[0] > shard[1]:
        raise ValueError("I/N with I from 1 to N, such as 2/4")
    return shard[0], shard[1]


def switch(value: Any) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    switch = value if isinstance(value, bool) else words.get(value.strip().lower()) if isinstance(value, str) else None
    if switch is None:
        raise ValueError("true or false")
    return switch


def name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a name")
    return value.strip()


def names(value: Any) -> tuple[str, ...]:
    given = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    if not given or not all(isinstance(each, str) and each.strip() for each in given):
        raise ValueError("names separated by commas")
    return tuple(each.strip() for each in given)


def lines(value: Any) -> frozenset[str]:
    """Split names at newlines; they may have any other character."""
    return frozenset(str(value).split("\n"))


def mitigation_set(value: Any) -> tuple[str, ...]:
    """Names and ``NAME=VALUE``. Text after a pair that is neither belongs to its value: ``A=1,2,tf32_off``."""
    pairs: list[str] = []
    for each in names(value):
        if pairs and "=" in pairs[-1] and isinstance(value, str) and not re.match(r"[A-Za-z_][\w.-]*(=|\Z)", each):
            pairs[-1] += f",{each}"
        else:
            pairs.append(each)
    return tuple(pairs)


#: Prefix of a mitigation that sets an option of the workload: ``config.lr=0.1``.
OPTION = "config."

#: What stands for collectors where a variable may stand.
COLLECT = "collect"

#: Beginnings of the names of mitigations that are a launcher prefix, or a program that runs beside each trial.
PREFIX, BESIDE = "prefix:", "beside:"


def variations(value: Any) -> tuple[tuple[str, ...], ...]:
    """``NAME=1,2,4``, ``config.NAME=1,2,4`` for an option of the workload, ``collect=none,numerics`` for collectors.

    A mitigation set for each value.
    """
    key, equals, values = value.partition("=") if isinstance(value, str) else ("", "", "")
    if not equals or not is_variable(key.removeprefix(OPTION), values) or len(values_given := values.split(",")) < 2:
        raise ValueError("a variable and at least two values for it, such as OMP_NUM_THREADS=1,2,4")
    return tuple((f"{key}={value}",) for value in values_given)


def folder(value: Any) -> Path:
    return Path(value) if isinstance(value, os.PathLike) else Path(name(value))


def trial_file(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise ValueError("the path of a trial file, or of a folder with some")
    return value


def file(value: str) -> str:
    if not value.strip() or "\0" in value or value.endswith("/"):
        raise ValueError("the path of a file")
    return value


def preload(value: Any) -> str | tuple[str, ...]:
    """Read ``auto``, ``none``, or the names of modules to import before trials are forked."""
    expected = "auto, none, or names of modules separated by commas, such as torch,numpy"
    try:
        modules = names(value)
    except ValueError:
        raise ValueError(expected) from None
    if isinstance(value, str) and modules[0] in ("auto", "none") and len(modules) == 1:
        return modules[0]
    if not all(re.fullmatch(_MODULE, name) for name in modules) or {"auto", "none"} & {*modules}:
        raise ValueError(expected)
    return modules


def pairs(text: str) -> dict[str, str]:
    """``K=V[,K=V]``; a comma starts a new pair only before ``NAME=``, so values may hold commas."""
    options_given = {}
    for part in re.split(f",{NEXT_PAIR}", text):
        key, equals, value = part.partition("=")
        if not equals or not is_variable(key, value):
            raise ValueError(PAIRS)
        options_given[key] = value
    return options_given


def is_variable(key: str, value: str) -> bool:
    return re.fullmatch(_VARIABLE, key) is not None and "\0" not in value


def shown_pairs(text: str) -> str:
    """A wrong ``K=V[,K=V]`` for a message: only the wrong name, since the rest may be a secret."""
    parts = [part.partition("=") for part in re.split(f",{NEXT_PAIR}", text)]
    key, equals, value = next((part for part in parts if not re.fullmatch(_VARIABLE, part[0]) or not part[1]), parts[0])
    if not equals:
        return "a text without '='"
    # A secret in Base64 ends like that, and a name that nothing follows is more likely one.
    return repr(key) if value.strip("=") else "a text with nothing after its '='"


def shown_command(text: str) -> str:
    """A wrong command for a message, without values of variables, which may be secrets."""
    return repr(re.sub(r"\b([A-Za-z_][A-Za-z0-9_]*=)\S*", r"\1...", text))


def key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError("KEY=VALUE")
    return key.strip(), value


def options(value: Any) -> dict[str, Any]:
    """Options of a workload from Python, with values of any type."""
    if not hasattr(value, "keys") or not all(isinstance(key, str) and key.strip() for key in value):
        raise ValueError("KEY=VALUE")
    return dict(value)


class Setting:  # much faster to define than a dataclass, and pytest waits for it at every start
    """One setting.

    Attributes:
        name: as typed on the command line, without ``--aorta-``.
        reader: what makes a value of a text, or its ``module:function`` within this package.
        metavar: what stands for the value; empty for a switch, which stands without a value on the command line.
        help: one sentence.
        default: as it is typed; empty where there is none, or where ``help`` says what it depends on.
        separator: a regular expression that several values are separated by in a variable, where there may be several:
            repeated on the command line, lines in an ini file.
        scope: ``option`` for all three spellings; ``ini`` for ini file and environment; ``internal`` for what a command
            of pytest-aorta hands to pytest, by the option ``hidden``.
    """

    __slots__ = (
        *("name", "reader", "metavar", "help", "default", "separator", "scope"),
        *("ini", "variable", "flag", "hidden", "repeat", "is_switch"),
    )

    def __init__(
        self,
        name: str,
        reader: Reader | str,
        metavar: str,
        help: str,
        default: str = "",
        separator: str = "",
        scope: str = "option",
    ) -> None:
        self.name, self.reader, self.metavar, self.help = name, reader, metavar, help
        self.default, self.separator, self.scope = default, separator, scope
        self.ini = f"aorta_{name.replace('-', '_')}"
        self.variable = f"PYTEST_{self.ini.upper()}"
        self.flag = f"--aorta-{name}" if scope == "option" else self.ini if scope == "ini" else f"--{name}"
        self.hidden = f"--_{self.ini}"
        self.repeat = bool(separator)
        self.is_switch = not metavar

    def __repr__(self) -> str:
        return self.flag

    @property
    def parse(self) -> Reader:
        """The reader, imported only now."""
        if callable(self.reader):
            return self.reader
        from importlib import import_module

        module, _, function = self.reader.partition(":")
        reader: Reader = getattr(import_module(f"pytest_aorta.{module}"), function)
        return reader


_REGEX = "trials.output:checked_regex"

#: Groups of ``pytest --help``, and the settings in each.
GROUPS: Mapping[str, tuple[Setting, ...]] = {
    "commands as trials": (
        Setting("command", "trials.command_line:checked_command", "CMD", "run this command (repeat)", separator="\n"),
        Setting("fail-on", _REGEX, "RE", "a matching line fails a command (repeat)", separator="\n"),
        Setting("pass-on", _REGEX, "RE", "a command passes only if a line matches (repeat)", separator="\n"),
        Setting("skip-on", _REGEX, "RE", "a matching line means: cannot judge (repeat)", separator="\n"),
        Setting(
            "metric",
            "trials.output:checked_metric",
            "RE",
            "named groups are metrics of a command (repeat)",
            separator="\n",
        ),
        Setting(
            "metrics-from",
            "trials.readers:checked_source",
            "FROM",
            "auto, a format, jsonl:F, tensorboard:D (repeat)",
            separator="\n",
        ),
        Setting("fail-on-nonfinite", switch, "", "a NaN or infinite metric fails a trial, any such value a command"),
        Setting("allow-nonfinite", name, "NAME", "this value may be NaN or infinite (repeat)", separator=";"),
        Setting("depends", name, "PATH", "a command's result depends on this file (repeat)", separator=";"),
        Setting("observe", choice("none", "exits", "full"), "HOW", "how a command is watched: none, exits, full"),
    ),
    "trials": (
        Setting("workload", name, "NAME", "run this registered workload (repeat)", separator=";"),
        Setting("graph", name, "FILE:FUNC", "run a graph of tasks in a legal order per trial"),
        Setting("trials", trials, "N", "trials per cell, or auto", "1"),
        Setting("environment", name, "NAME", "registered environment (repeat)", "local", separator=";"),
        Setting("mitigations", mitigation_set, "A,B", "a set of names or K=V; repeat for more", "none", separator=";"),
        Setting("vary", variations, "K=1,2", "an axis of values of a variable (repeat)", separator=";"),
        Setting("extra-env", pairs, "K=V", "variables on top of all mitigations (repeat)", separator=f";{NEXT_PAIR}"),
        Setting("steps", positive_int, "N", "number of steps, for workloads with steps"),
        Setting("config", key_value, "K=V", "an option of the workload (repeat)", separator=";"),
        Setting("collect", names, "A,B", "collectors, with options: numerics:window=9"),
        Setting("collect-on-failure", switch, "", "run failed trials again at the end, with the collectors"),
        Setting("seed", whole, "N", "trial i of every cell gets the same random seeds"),
        Setting(
            "replay",
            trial_file,
            "FILE",
            "run the trial of this file or folder again (repeat)",
            separator=";",
        ),
        Setting("registry-file", name, "FILE", "more mitigations and environments (repeat)", separator=";"),
    ),
    "processes of trials": (
        Setting(
            "isolation",
            choice("auto", "fork", "spawn", "none"),
            "HOW",
            "auto, fork, spawn, or none: in pytest itself",
            "auto",
        ),
        Setting("zygotes", positive_int, "N", "prepared processes of each cell of a class", scope="ini"),
        Setting("preload", preload, "HOW", "modules to import once per cell: auto, none, A,B", "auto"),
        Setting("cwd", choice("here", "fresh", "copy"), "HOW", "working directory: here, fresh or copy", "here"),
        Setting("timeout", seconds, "SEC", "deadline of a trial, and of its import"),
        Setting("stall-timeout", seconds, "SEC", "longest time without progress() in setup() or run()", scope="ini"),
        Setting("grace", grace, "SEC", "time from SIGTERM to SIGKILL, to end a trial", "5", scope="ini"),
        Setting("memory", size, "SIZE", "most memory of each process, such as 8G"),
        Setting("log-limit", size, "SIZE", "keep head and tail of logs above this size", "64M", scope="ini"),
        Setting("slots", slots, "N", "trials at a time: N or auto[,own-cores]", "1"),
        Setting("devices", devices, "LIST", "GPUs to lease to trials, such as 0-3; none hides all"),
        Setting("host", name, "SPEC", "host for trials: popen, ssh=... as in --tx (repeat)", separator=";"),
        Setting("health", switch, "BOOL", "read the health of devices and host beside trials", "true", scope="ini"),
        Setting("nproc", positive_int, "N", "ranks of a distributed workload (default: its minimum)"),
        Setting(
            "launcher",
            choice("auto", "elastic", "torchrun", "external", "as-typed"),
            "HOW",
            "elastic, torchrun, external, or as-typed",
            "auto",
        ),
        Setting(
            "elastic",
            "trials.execution:elastic_option",
            "K=V",
            "an option of the ranks' agent: max_restarts=1 (repeat)",
            separator=";",
        ),
    ),
    "which trials, and when to stop": (
        Setting("resume", switch, "", "keep results of equal requests, run the rest"),
        Setting("shard", shard, "I/N", "run part I of N of the collected items"),
        Setting(
            "where",
            "common.conditions:parse_condition",
            "COND",
            "only matching trials, such as /config/lr<0.1 (repeat)",
            separator=";",
        ),
        Setting("stop", "triage:stop", "WHEN", "end early: decided, first-fix, speed, failures=3, 8h"),
        Setting(
            "order",
            choice("interleaved", "grouped", "random"),
            "HOW",
            "trials interleaved over cells, grouped by cell, or random",
            "interleaved",
            scope="ini",
        ),
    ),
    "results of trials": (
        Setting("results-dir", name, "DIR", "where results go", "results"),
        Setting("history", history, "N", "earlier runs kept of each workload: a number, or all", "10", scope="ini"),
        Setting("report", file, "FILE", "write an HTML report of the results directory"),
        Setting("baseline", name, "CELL", "cell or mitigation set to compare with (default none)"),
        Setting("margin", "triage:margin", "P", "the same rate: within P of the baseline's", "50%,0.1", scope="ini"),
        Setting("speed-margin", share, "P", "ignore step-time changes below this", "0.05"),
        Setting(
            "gate",
            "triage.gates:parse_gate",
            "EXPR",
            "decides the exit status: failure_rate<=0.02 (repeat)",
            separator=";",
        ),
    ),
    "commands of trials": (
        Setting(
            "minimize", mitigation_set, "A,B", "find the smallest part of this set that still fixes", scope="internal"
        ),
        Setting(
            "bisect", "search:bisect_request", "JSON", "which of its cells changes the failure rate", scope="internal"
        ),
        Setting("amplify", "search:amplify_request", "JSON", "which cell fails most often", scope="internal"),
        Setting(
            "explain", "search.explain:explain_request", "JSON", "which differences make it fail", scope="internal"
        ),
        Setting("build", name, "CMD", "makes the working tree of a commit ready", scope="internal"),
        Setting("max-trials", positive_int, "N", "most trials of a search", "2000", scope="internal"),
        Setting("units", lines, "NAMES", "only these directories, cells and trials of a recipe", scope="internal"),
        Setting("since", name, "TIME", "keep no trial of a recipe from before this time", scope="internal"),
        Setting("actions", name, "PATTERN", "only these actions of a recipe", scope="internal"),
    ),
}

SETTINGS = (*[setting for group in GROUPS.values() for setting in group],)
BY_NAME = {setting.name: setting for setting in SETTINGS}
