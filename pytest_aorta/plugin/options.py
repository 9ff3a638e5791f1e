"""Settings in pytest: options, ini keys and environment variables, and the selection that they make.

The first of ``--aorta-NAME`` (or ``-o aorta_NAME=``), ``PYTEST_AORTA_NAME`` and ``aorta_NAME`` in the ini file wins.
pytest imports this module at every start, so functions for runs with trials have imports of their own.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

import pytest_aorta.settings as settings  # "from" takes what a nested run of pytest has left
from pytest_aorta.settings import GROUPS, SETTINGS, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_aorta.plan import Selection


def add_options(parser: pytest.Parser) -> None:
    for title, members in GROUPS.items():
        group = parser.getgroup(f"aorta: {title}")
        for setting in members:
            if setting.scope == "internal":
                group.addoption(setting.hidden, dest=setting.ini, help=argparse.SUPPRESS)
                continue
            if setting.scope == "option":
                default = f" (default {setting.default})" if setting.default else ""
                how: dict[str, Any] = {"action": "append" if setting.repeat else "store", "metavar": setting.metavar}
                if setting.is_switch:
                    how = {"action": "store_const", "const": "true"}
                group.addoption(setting.flag, dest=setting.ini, help=setting.help + default, **how)
            kind = "linelist" if setting.repeat else "string"
            text = setting.help if setting.scope == "ini" else f"same as {setting.flag}"
            parser.addini(setting.ini, text, type=kind, default=None)  # type: ignore[arg-type]


def refuse_mistyped(parser: pytest.Parser, arguments: Sequence[str]) -> None:
    flags = {setting.flag for setting in SETTINGS if setting.scope == "option"}
    typed = (argument.partition("=")[0] for argument in arguments)
    wrong = [flag for flag in typed if flag.startswith("--aorta-") and flag not in flags]
    if not wrong or not any(each.startswith(wrong[0]) for each in parser.parse_known_and_unknown_args(arguments)[1]):
        return
    import difflib

    setting = settings.BY_NAME.get(name := wrong[0].removeprefix("--aorta-"))
    if setting is not None and setting.scope == "ini":
        hint = f"it is a setting of the ini file: -o {setting.ini}=VALUE"
    elif likely := difflib.get_close_matches(name, [flag.removeprefix("--aorta-") for flag in flags], 1):
        hint = f"did you mean --aorta-{likely[0]}?"
    else:
        hint = "pytest --help lists those of pytest-aorta"
    raise pytest.UsageError(f"{wrong[0]}: there is no such option; {hint}")


def is_mentioned(config: pytest.Config, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether any setting has a value: from the command line, a variable or the ini file."""
    return any(
        getattr(config.option, setting.ini, None) is not None
        or (setting.scope != "internal" and (environ.get(setting.variable) or ini_value(config, setting.ini)))
        for setting in SETTINGS
    )


def is_typed(config: pytest.Config, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the workloads come from the command line or a variable, and not from the ini file."""
    return any(
        getattr(config.option, setting.ini, None) is not None or environ.get(setting.variable)
        for setting in SETTINGS
        if setting.name in ("workload", "command", "graph", "replay")
    )


def given_options(config: pytest.Config) -> dict[str, Any]:
    """Values on the command line by name of the setting: a text, or a list for settings that may be repeated."""
    values = {setting.name: getattr(config.option, setting.ini, None) for setting in SETTINGS}
    return {name: value for name, value in values.items() if value is not None}


def ini_value(config: pytest.Config, name: str) -> Any:
    try:
        return config.getini(name)
    except (TypeError, pytest.UsageError):  # native TOML; which of them depends on the version of pytest
        from pytest_aorta.plugin.compat import native_ini_value

        return native_ini_value(config, name)


def read_option(config: pytest.Config, name: str, environ: Mapping[str, str] = os.environ) -> Any:
    setting = settings.BY_NAME[name]
    given, source = getattr(config.option, setting.ini, None), setting.flag
    if setting.scope != "internal":
        on_command_line = any(
            text.startswith(f"{setting.ini}=") for text in getattr(config.option, "override_ini", None) or ()
        )
        if given is None and not on_command_line and (text := environ.get(setting.variable)):
            given = [part for part in re.split(setting.separator, text) if part.strip()] if setting.repeat else text
            source = f"the environment variable {setting.variable}"
        if given is None:
            given = ini_value(config, setting.ini) or None
            source = f"-o {setting.ini}" if on_command_line else f"{setting.ini} in {config.inipath}"
    if given is None or given == []:
        return None
    texts = given if isinstance(given, list) else [given]
    if not all(isinstance(text, str) for text in texts) or (isinstance(given, list) and not setting.repeat):
        raise OptionError(f"{source}: {given!r} is not valid; expected a text, a number, true or false")
    parsed, in_message = [], {"extra-env": settings.shown_pairs, "command": settings.shown_command}.get(name, repr)
    for text in texts:
        try:
            parsed.append(setting.parse(text))
        except ValueError as error:
            raise OptionError(f"{source}: {in_message(text)} is not valid; expected {error}") from None
    return tuple(parsed) if setting.repeat else parsed[0]


def read_selection(config: pytest.Config, environ: Mapping[str, str] = os.environ) -> Selection:
    from pytest_aorta.plan import select
    from pytest_aorta.plugin import is_controller, is_worker

    values = {setting.name: read_option(config, setting.name, environ) for setting in SETTINGS}
    if values["slots"] is not None and values["slots"][0] == 0 and (is_worker(config) or is_controller(config)):
        values["slots"] = (1, values["slots"][1])  # its siblings are the other slots
    of_xdist: Mapping[str, Any] = getattr(config, "workerinput", {})
    workers = int(of_xdist.get("workercount", 1))
    # One that takes the place of a crashed worker has a higher number.
    worker = int("".join(filter(str.isdigit, of_xdist.get("workerid", ""))) or 0) % workers
    here = config.invocation_params.dir
    base = here if config.inipath is None else config.inipath.parent
    return select(values, here, base, worker=worker, workers=workers)
