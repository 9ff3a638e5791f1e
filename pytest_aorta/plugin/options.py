"""Command line, environment variables and ini file to one Selection.

Every option has three sources, of which the first with a value wins: ``--aorta-NAME``, ``PYTEST_AORTA_NAME``, and
``aorta_NAME`` in the ini file.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pytest_aorta.option_values as valid  # "from" takes what a nested run of pytest has left
from pytest_aorta.common.request_error import RequestError
from pytest_aorta.option_table import OPTIONS, Option
from pytest_aorta.plugin.option_declarations import ini_value
from pytest_aorta.plugin.xdist_roles import is_controller, is_worker, worker_of_workers

if TYPE_CHECKING:
    from pytest_aorta.plan import Selection


class OptionError(RequestError):
    """A value that an option cannot take; the message names value, source and what would be valid."""


#: Whether options are those of an earlier run, whose paths are those of this one.
RECALLED = pytest.StashKey[bool]()


def is_typed(config: pytest.Config, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the workloads are of this run only, and not of every run with this ini file."""
    return RECALLED not in config.stash and any(
        getattr(config.option, option.ini, None) is not None or environ.get(option.variable)
        for option in OPTIONS
        if option.name in ("workload", "command", "replay")
    )


def read_selection(config: pytest.Config, environ: Mapping[str, str] = os.environ) -> Selection:
    """The Selection of a pytest run.

    Raises:
        OptionError: naming the value, where it came from and what would be valid.
    """
    from pytest_aorta.plan import Selection
    from pytest_aorta.triage.verdicts import TriageSettings
    from pytest_aorta.trials.execution import Execution, Resources
    from pytest_aorta.trials.limits import Limits
    from pytest_aorta.trials.output_rules import OutputRules

    values = {option.ini: _read(option, config, environ) for option in OPTIONS}
    worker, workers = worker_of_workers(config)
    base = config.inipath.parent if config.inipath is not None else config.invocation_params.dir
    if values["aorta_slots"] == 0:
        values["aorta_slots"] = _automatic_slots(config, values["aorta_devices"])
    if values["aorta_elastic"] is not None:
        from pytest_aorta.trials.elastic_options import elastic_options

        values["aorta_elastic"] = elastic_options(dict(values["aorta_elastic"]))
    if values["aorta_report"] is not None:
        values["aorta_report"] = Path(values["aorta_report"])
    if values["aorta_results_dir"] is not None:
        values["aorta_results_dir"] = Path(values["aorta_results_dir"])

    if values["aorta_durations"] is not None:
        here = config.invocation_params.dir / values["aorta_durations"]
        values["aorta_durations"] = here if here.exists() else base / values["aorta_durations"]
    _set_bounds(values)

    def given(*names: str, **renamed: str) -> dict[str, Any]:
        """Values by field, of those options that have one; ``renamed`` maps fields to options of other names."""
        found = {field: values[f"aorta_{name}"] for field, name in [*zip(names, names, strict=True), *renamed.items()]}
        return {field: value for field, value in found.items() if value is not None}

    return Selection(
        **given("trials", "mitigations", "steps", "collect", "results_dir", "resume", "history", "order", "report"),
        **given(workloads="workload", environments="environment", commands="command"),
        output=OutputRules(**given("fail_on", "pass_on", "metric", "fail_on_nonfinite")),
        extra_env={name: value for pairs in values["aorta_extra_env"] or () for name, value in pairs.items()},
        config=dict(values["aorta_config"] or ()),
        replays=tuple(config.invocation_params.dir / text for text in values["aorta_replay"] or ()),
        registry_files=tuple(_path(text, base) for text in values["aorta_registry_file"] or ()),
        execution=Execution(**given("isolation", "launcher", "nproc", "elastic", "seed", "preload")),
        limits=Limits(**given("timeout", "stall_timeout", "grace", "memory", "log_limit")),
        resources=Resources(
            **given("slots", "devices", "own_cores"),
            hosts=_hosts(values["aorta_host"] or ()),
            workers=workers,
            worker=worker,
        ),
        triage=TriageSettings(**given("baseline", "margin"), sequential=_is_sequential(values)),
        gates=values["aorta_gate"] or (),
        where=values["aorta_where"] or (),
        **given("until_decided", "duration", "minimize", "max_trials", "shard", "durations"),
    )


#: Trials of a plan whose end is a duration: more would take long to collect.
_TRIALS_IN_TIME = 10_000

#: Of each cell, however many there are.
_ROUNDS_IN_TIME = 100


def _is_sequential(values: Mapping[str, Any]) -> bool:
    """Whether the number of trials depends on how they end."""
    return bool(values["aorta_until_decided"] or values["aorta_duration"] or values["aorta_minimize"])


def _set_bounds(values: dict[str, Any]) -> None:
    """The number of trials where something else is to end them."""
    if values["aorta_duration"] and (values["aorta_order"] or "interleaved") != "interleaved":
        raise OptionError(f"--aorta-order {values['aorta_order']} and --aorta-duration: whole rounds are interleaved")
    if values["aorta_minimize"]:
        for option in ("shard", "where"):
            if values[f"aorta_{option}"]:
                raise OptionError(f"--aorta-minimize and --aorta-{option}: use one of them; a search is not divided")
        for option in ("until_decided", "duration"):
            if values[f"aorta_{option}"]:
                name = option.replace("_", "-")
                raise OptionError(f"--aorta-minimize and --aorta-{name}: use one of them; a search ends by itself")
        baseline = values["aorta_mitigations"] or (("none",),)
        if len(baseline) > 1 or baseline[0] == values["aorta_minimize"]:
            given = " and ".join(",".join(names) for names in baseline)
            raise OptionError(
                f"--aorta-mitigations {given}: with --aorta-minimize, expected one other mitigation set, the baseline "
                "(default none)"
            )
        values["aorta_mitigations"] = (*baseline, values["aorta_minimize"])
        values["aorta_baseline"] = values["aorta_baseline"] or ",".join(baseline[0])
    if values["aorta_trials"] is not None:
        return
    if values["aorta_duration"]:
        workloads = (*(values["aorta_workload"] or ()), *(values["aorta_command"] or ()))
        axes = (workloads, values["aorta_environment"], values["aorta_mitigations"])
        cells = math.prod(len(axis or ("",)) for axis in axes)
        values["aorta_trials"] = max(_ROUNDS_IN_TIME, _TRIALS_IN_TIME // cells)
    elif values["aorta_minimize"] or values["aorta_until_decided"]:
        values["aorta_trials"] = valid.TRIALS_UNTIL_DECIDED


def read_option(config: pytest.Config, name: str, environ: Mapping[str, str] = os.environ) -> Any:
    """The value of one option; ``None`` where it has none.

    Raises:
        OptionError: it cannot take the value.
    """
    return _read(next(option for option in OPTIONS if option.name == name), config, environ)


def _automatic_slots(config: pytest.Config, devices: tuple[int, ...] | None) -> int:
    """One per device that may be leased, else one per physical core that pytest may use.

    One for an xdist worker, whose siblings are the other slots.
    """
    if is_worker(config) or is_controller(config):
        return 1
    from pytest_aorta.trials.execution import automatic_slots

    return automatic_slots(devices)


def _hosts(texts: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return valid.hosts(texts, "--aorta-host")
    except RequestError as error:
        raise OptionError(str(error)) from None


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
        given = ini_value(config, option.ini) or None
        source = f"{option.ini} in {config.inipath}"
    if given is None or given == []:
        return None
    texts = given if isinstance(given, list) else [given]
    if not all(isinstance(text, str) for text in texts) or (isinstance(given, list) and not option.repeat):
        raise OptionError(f"{source}: {given!r} is not valid; expected a text, a number, true or false")
    parsed = tuple(_parse(option, text, source) for text in texts)
    return parsed if option.repeat else parsed[0]


def _parse(option: Option, text: str, source: str) -> Any:
    try:
        return option.parse(text)
    except ValueError as error:
        readers = {"extra-env": valid.shown_pairs, "command": valid.shown_command}
        shown = readers.get(option.name, repr)(text)
        raise OptionError(f"{source}: {shown} is not valid; expected {error}") from None
