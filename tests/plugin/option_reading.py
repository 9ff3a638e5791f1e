"""Reading options as pytest gives them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_aorta.plan import Selection
from pytest_aorta.plugin.options import read_selection
from pytest_aorta.settings import SETTINGS, Setting

NO_VARIABLES: Mapping[str, str] = {}


def option(name: str) -> Setting:
    (found,) = (option for option in SETTINGS if option.name == name)
    return found


def on_command_line(setting: Setting, text: str) -> tuple[str, ...]:
    return (f"{setting.flag}={text}",) if setting.scope == "option" else ("-o", f"{setting.ini}={text}")


def read(
    pytester: pytest.Pytester, *arguments: str, environ: Mapping[str, str] = NO_VARIABLES, ini: str = ""
) -> Selection:
    """What a pytest with these arguments would be asked to do."""
    return read_selection(configure(pytester, *arguments, ini=ini), environ)


def configure(pytester: pytest.Pytester, *arguments: str, ini: str = "") -> pytest.Config:
    pytester.makeini(f"[pytest]\n{ini}")
    return pytester.parseconfig(*arguments)


def typed(**given: Any) -> pytest.Config:
    """As much of a configuration as is looked at, with these on the command line."""
    options = SimpleNamespace(**{each.ini: given.get(each.ini) for each in SETTINGS})
    return cast(
        pytest.Config,
        SimpleNamespace(
            option=options,
            getini=lambda name: None,
            inipath=None,
            invocation_params=SimpleNamespace(dir=Path("/")),
        ),
    )
