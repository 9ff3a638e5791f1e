"""A pytest plugin that counts the calls of this project's Python functions, by the part of the session they are in.

It is imported before all plugins, with ``-p``, and so sees their import as well.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

#: Where the counts go.
FILE = "CALL_COUNTS"

_PACKAGE = f"{os.sep}pytest_aorta{os.sep}"

#: "start", "collect" or "run" -> function -> calls; and the modules that were imported in between.
counts: dict[str, Counter[str]] = {part: Counter() for part in ("start", "collect", "run")}
modules: dict[str, list[str]] = {}
_part = "start"


def _count(frame: FrameType, event: str, _: Any) -> None:
    code = frame.f_code
    if event == "call" and _PACKAGE in code.co_filename and code.co_name != "<module>":
        counts[_part][f"{Path(code.co_filename).stem}.{code.co_name}"] += 1


def _begin(part: str) -> None:
    global _part
    modules[_part] = sorted(name for name in sys.modules if name.startswith("pytest_aorta"))
    _part = part


@pytest.hookimpl(trylast=True)
def pytest_sessionstart() -> None:
    _begin("collect")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    _begin("run")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was counted, but for xdist's workers."""
    sys.setprofile(None)
    _begin("end")
    hooks = sorted(
        {
            caller.name
            for name, plugin in session.config.pluginmanager.list_name_plugin()
            if name.startswith("aorta")
            for caller in session.config.pluginmanager.get_hookcallers(plugin) or ()
        }
    )
    if not hasattr(session.config, "workerinput"):
        Path(os.environ[FILE]).write_text(json.dumps({"calls": counts, "modules": modules, "hooks": hooks}))


if FILE in os.environ:  # a test imports this module for its names only
    sys.setprofile(_count)
