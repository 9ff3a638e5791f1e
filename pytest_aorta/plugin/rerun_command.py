"""The command that runs one item again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import pytest

from pytest_aorta.settings import SETTINGS

#: Not repeated: the item has a result now, and a report is one of all trials.
_OF_THE_RUN = ("resume", "report", "shard", "where")

#: Options of pytest and pytest-timeout that a trial depends on, by where their values are.
_OF_OTHERS = {"inifilename": "-c", "rootdir": "--rootdir", "override_ini": "-o", "timeout": "--timeout"}


def rerun_line(item: pytest.Item) -> str:
    """A command for the directory that pytest was started in, which runs just this item again.

    It has the options that shape the plan and its deadlines. Values of variables are left out: they may be secrets.
    """
    words = ["pytest", *_own_options(item.config), *_other_options(item.config), shown_nodeid(item)]
    return " ".join(shlex.quote(word) for word in words)


def shown_nodeid(item: pytest.Item) -> str:
    """The node id of an item, its file relative to the directory that pytest was started in."""
    here, top = item.config.invocation_params.dir, item.config.rootpath
    path, separator, names = item.nodeid.partition("::")
    # That of a plan is no path: it is the same everywhere.
    if here == top or not path.endswith((".py", ".toml")):
        return item.nodeid
    return f"{os.path.relpath(top / path, here)}{separator}{names}"


def _own_options(config: pytest.Config) -> Iterator[str]:
    for option in SETTINGS:
        given = getattr(config.option, option.ini, None)
        for value in given if isinstance(given, list) else [] if given is None else [given]:
            if option.name in _OF_THE_RUN or option.scope != "option":
                continue
            yield option.flag
            if option.name == "extra-env":
                yield ",".join(f"{name}=..." for name in option.parse(value))
            elif option.name == "host":
                from pytest_aorta.runtime.host_specs import without_values

                yield without_values(value)
            elif not option.is_switch:
                yield value


def _other_options(config: pytest.Config) -> Iterator[str]:
    for name, flag in _OF_OTHERS.items():
        given = getattr(config.option, name, None)
        for value in given if isinstance(given, list) else [] if given is None else [given]:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            secret = text.startswith(("aorta_extra_env", "aorta_host"))
            yield from (flag, text.partition("=")[0] + "=..." if secret else text)
