"""A pytest plugin that stands in for an IDE's: it looks at the same attributes of nodes, and nests them the same way.

VS Code has one such plugin report a tree of folders, files, classes and tests, whose ids are made of the *paths* of
nodes and what follows the path in their node ids. Later it has pytest run some of these ids, and nothing else.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

#: Where the report goes.
FILE = "IDE_REPORT"

#: Folders between a file and the top of the tree; more are a mistake.
_DEPTH = 100


class UnreachableFile(Exception): ...


def _id(node_id: str, path: Path) -> str:
    return "::".join([str(path), *node_id.split("::")[1:]])


def _place(item: pytest.Item, top: Path) -> list[str]:
    places = []
    parent = item.parent
    while isinstance(parent, pytest.Class):
        places.append(_id(parent.nodeid, parent.path))
        parent = parent.parent
    assert parent is not None
    places.append(str(parent.path))
    folder = parent.path.parent
    while folder != top:
        if len(places) > _DEPTH or folder == folder.parent:
            raise UnreachableFile(f"{parent.path} is not below {top}")
        places.append(str(folder))
        folder = folder.parent
    return places[::-1]


class Reporter:
    def __init__(self) -> None:
        self.report: dict[str, Any] = {}
        self.paths: dict[str, Path] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.paths = {item.nodeid: item.path for item in session.items}
        if session.config.option.collectonly:
            for item in session.items:
                line = item.location[1]
                found = {"in": _place(item, session.path), "line": None if line is None else line + 1}
                self.report[_id(item.nodeid, item.path)] = found

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> Any:
        if report.when == "call":
            self.report[_id(report.nodeid, self.paths[report.nodeid])] = report.outcome
        return (yield)

    def pytest_sessionfinish(self) -> None:
        Path(os.environ[FILE]).write_text(json.dumps(self.report))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Reporter())
