"""Starting a zygote: what can go wrong before the first task, and what makes forking unsafe."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from support.nursery import Nursery

import pytest_aorta
from pytest_aorta.runtime.zygote import PrefixFacts, Zygote, ZygoteError, ZygoteSpec


def error_of(zygote: Zygote) -> ZygoteError:
    with pytest.raises(ZygoteError) as caught:
        zygote.wait_ready()
    assert not zygote.alive()
    return caught.value


# What can go wrong while preparing.


def test_an_import_that_fails_says_what_it_raised(nursery: Nursery) -> None:
    error = error_of(nursery.start("import no_such_module_at_all"))

    assert str(error) == "ModuleNotFoundError: No module named 'no_such_module_at_all'"
    assert error.phase == "import"
    assert error.returncode is None
    assert error.error is not None
    assert error.error["type"] == "ModuleNotFoundError"
    assert "nursery_module_0.py" in error.error["traceback"]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("raise SystemExit('not today')", "SystemExit: not today"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
        ("raise BaseException('odd')", "BaseException: odd"),
        ("1 +", "SyntaxError: invalid syntax"),
    ],
)
def test_whatever_an_import_raises_is_an_error_of_the_import(nursery: Nursery, statement: str, message: str) -> None:
    error = error_of(nursery.start(statement))

    assert str(error).startswith(message)
    assert error.phase == "import"


@pytest.mark.parametrize(
    ("statement", "returncode", "text"),
    [
        ("import os; os._exit(5)", 5, "ended with exit code 5 before it was ready"),
        ("import os; os.abort()", -signal.SIGABRT, "ended with signal SIGABRT before it was ready"),
        ("import ctypes\ndef nowhere(): ctypes.string_at(0)\nnowhere()", -signal.SIGSEGV, "ended with signal SIGSEGV"),
    ],
)
def test_an_import_that_ends_the_process_says_how_and_what_it_had_printed(
    nursery: Nursery, statement: str, returncode: int, text: str
) -> None:
    error = error_of(nursery.start(f"print('about to go', flush=True)\n{statement}"))

    assert str(error).startswith(text)
    assert "about to go" in str(error)
    assert ("in nowhere" in str(error)) == ("nowhere" in statement)
    assert error.returncode == returncode
    assert error.phase == "import"


def test_an_import_may_print_whatever_it_likes(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import os, sys
        print("hello", flush=True)
        os.write(2, b"warning \\xff\\n")
        sys.stdout.write("no newline, not flushed")
        def run(payload, send):
            print("task")
        """
    )

    assert nursery.run(zygote).stdout == "task\n"
    assert zygote.output() == "hello\nwarning \ufffd\nno newline, not flushed"


# What can go wrong before that.


def test_an_interpreter_that_is_not_there(nursery: Nursery) -> None:
    with pytest.raises(ZygoteError, match=r"^cannot start '/no/such/python': .*No such file") as caught:
        nursery.start("", command=("/no/such/python",))

    assert caught.value.phase == "launch"


def test_an_interpreter_with_another_version_of_this_package_is_refused(nursery: Nursery) -> None:
    package = nursery.path / "other" / "pytest_aorta"
    shutil.copytree(Path(pytest_aorta.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    version = package / "_version.py"
    version.write_text(version.read_text().replace(f'"{pytest_aorta.__version__}"', '"99.0"'))

    error = error_of(nursery.start("", environ={"PYTHONPATH": str(package.parent)}))

    assert str(error) == (
        f"{sys.executable} has pytest-aorta 99.0, but this is {pytest_aorta.__version__}; "
        "install the same version there"
    )


def test_the_working_directory_does_not_shadow_what_the_interpreter_imports(nursery: Nursery) -> None:
    for name in ("json", "psutil", "pytest_aorta", "select"):
        (nursery.path / "work").mkdir(exist_ok=True)
        (nursery.path / "work" / f"{name}.py").write_text("raise RuntimeError('shadowed')")
    zygote = nursery.start(
        """
        import sys
        def run(payload, send):
            send({"value": [path for path in sys.path if path == "" or path.endswith("work")]})
        """,
        cwd=str(nursery.path / "work"),
    )

    assert nursery.run(zygote).told == [[]]


def test_further_paths_come_after_the_interpreter_s_own(nursery: Nursery) -> None:
    (nursery.path / "json.py").write_text("raise RuntimeError('shadowed')")
    zygote = nursery.start(
        """
        import json, sys
        def run(payload, send):
            send({"value": [json.__name__, sys.path[-1]]})
        """
    )

    assert nursery.run(zygote).told == [["json", str(nursery.path)]]


# Rehearsals, and what specifications have in common.


CHANGED: dict[str, Any] = {
    "command": ("other",),
    "environ": {"A": "\udcff"},
    "prepare": "other:prepare",
    "argument": {"other": 1},
    "run": "other:run",
    "sys_path": ("/other",),
    "cwd": "/other",
    "fresh": True,
    "load": "other:load",
    "behind": PrefixFacts({"A": "1"}),
    "rehearse": "other:rehearse",
}


def test_specifications_have_one_key_only_if_all_their_fields_are_equal() -> None:
    spec = ZygoteSpec(("python",), {"A": "1", "B": "2"}, "m:prepare", {"a": 1}, "m:run", ("/a",), "/")

    assert set(CHANGED) == {field.name for field in fields(ZygoteSpec)}
    keys = {spec.key, *(replace(spec, **{name: value}).key for name, value in CHANGED.items())}
    assert len(keys) == 1 + len(CHANGED)
    assert replace(spec, environ={"B": "2", "A": "1"}).key == spec.key
    assert re.fullmatch("[0-9a-f]{64}", spec.key)
