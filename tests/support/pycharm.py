"""A stand-in for PyCharm: what it reads of the messages of teamcity-messages, and what it has pytest run later.

PyCharm runs pytest with that plugin. The id of a test, without what is in parentheses, is the dotted name of a Python
element, to which a click on the test leads. *Run* on one test gives pytest that element's file, its name, and the
parameters that follow it in the message's ``metainfo``. *Rerun failed tests* gives the same arguments and
``--last-failed``. (``PyTestsShared.kt``, ``PyTest.kt`` and ``_jb_runner_tools.py`` in JetBrains/intellij-community.)
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

#: Before the targets, as PyCharm has them with pytest 6 and later; the first one in place of a variable of TeamCity's.
OPTIONS = ("--teamcity", "--no-header", "--no-summary", "-q")

#: After the arguments of a run.
RERUN_FAILED = "--last-failed"

_MESSAGE = re.compile(r"##teamcity\[(\w+)((?: \w+='(?:\|.|[^|'])*')*)\]")
_ATTRIBUTE = re.compile(r" (\w+)='((?:\|.|[^|'])*)'")
_ESCAPED = {"n": "\n", "r": "\r"}


@dataclass
class ShownTest:
    name: str
    metainfo: str
    outcome: str = "running"
    text: list[str] = field(default_factory=list)

    def target(self, folder: Path) -> str | None:
        """What *Run* gives to pytest in ``folder``; ``None`` where the id leads to no Python element."""
        names = self.name.partition("(")[0].split(".")
        for count in range(len(names) - 1, 0, -1):
            file = Path(*names[:count]).with_suffix(".py")
            if (folder / file).is_file():
                parameters = re.search(r"\[(.+)]$", self.metainfo)
                found = _has_element(ast.parse((folder / file).read_text()), names[count:])
                return "::".join([str(file), *names[count:]]) + (parameters[0] if parameters else "") if found else None
        return None


def shown_tests(output: str) -> dict[str, ShownTest]:
    tests: dict[str, ShownTest] = {}
    for kind, rest in _MESSAGE.findall(output):
        attributes = {name: _unescaped(value) for name, value in _ATTRIBUTE.findall(rest)}
        name = attributes.get("name", "")
        if kind == "testStarted":
            assert name not in tests, f"{name} is shown twice"
            tests[name] = ShownTest(name, attributes.get("metainfo", ""))
        elif kind in ("testFailed", "testIgnored"):
            tests[name].outcome = kind.removeprefix("test").lower()
            tests[name].text += [attributes["message"], attributes.get("details", "")]
        elif kind in ("testStdOut", "testStdErr"):
            tests[name].text.append(attributes["out"])
        elif kind == "testFinished" and tests[name].outcome == "running":
            tests[name].outcome = "passed"
    return tests


def _has_element(scope: ast.AST, names: list[str]) -> bool:
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.ClassDef | ast.FunctionDef) and child.name == names[0]:
            return len(names) == 1 or _has_element(child, names[1:])
    return False


def _unescaped(text: str) -> str:
    return re.sub(r"\|(.)", lambda match: _ESCAPED.get(match[1], match[1]), text)
