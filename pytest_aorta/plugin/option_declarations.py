"""Options as pytest declares them, and whether any has a value: all of options that pytest needs at every start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.option_table import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping


def add_options(parser: pytest.Parser) -> None:
    """Declare all options and their ini twins."""
    group = parser.getgroup("aorta", "trials of workloads (pytest-aorta)")
    for option in OPTIONS:
        if option.bare:
            group.addoption(
                option.flag,
                dest=option.ini,
                nargs="?",
                const=option.bare,
                default=None,
                metavar=option.metavar,
                help=option.help_text,
            )
        elif option.is_switch:
            group.addoption(option.flag, dest=option.ini, action="store_const", const="true", help=option.help_text)
        else:
            group.addoption(
                option.flag,
                dest=option.ini,
                action="append" if option.repeat else "store",
                default=None,
                metavar=option.metavar,
                help=option.help_text,
            )
        kind = "linelist" if option.repeat else "string"
        parser.addini(option.ini, f"same as {option.flag}", type=kind, default=None)  # type: ignore[arg-type]


def is_mentioned(config: pytest.Config, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether any option has a value from anywhere."""
    return any(
        getattr(config.option, option.ini, None) is not None
        or environ.get(option.variable)
        or ini_value(config, option.ini)
        for option in OPTIONS
    )


def ini_value(config: pytest.Config, name: str) -> Any:
    """Of a declared ini option."""
    try:
        return config.getini(name)
    except (TypeError, pytest.UsageError):  # native TOML; which of them depends on the version of pytest
        from pytest_aorta.plugin.compat import native_ini_value

        return native_ini_value(config, name)
