"""The start of a zygote and its end: what can go wrong before the first task, and what makes forking unsafe."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from support.nursery import ECHO, Nursery, nursery_at
from support.processes import MARK, wait_until

import pytest_aorta
from pytest_aorta.runtime import process_tree
from pytest_aorta.runtime.zygote import PrefixFacts, StartLimits, Zygote, ZygoteError, ZygoteSpec


def error_of(zygote: Zygote) -> ZygoteError:
    with pytest.raises(ZygoteError) as caught:
        zygote.wait_ready()
    assert not zygote.alive()
    return caught.value


# What can go wrong while preparing.


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
    ],
)
def test_whatever_an_import_raises_is_an_error_of_the_import(nursery: Nursery, statement: str, message: str) -> None:
    error = error_of(nursery.start(statement))

    assert str(error) == message
    assert error.phase == "import"
    assert error.returncode is None
    assert error.error is not None
    assert error.error["type"] == message.partition(":")[0]
    assert "nursery_module_0.py" in error.error["traceback"]


@pytest.mark.parametrize(
    ("statement", "returncode", "text"),
    [
        ("import os; os._exit(5)", 5, "ended with exit code 5 before it was ready"),
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


def test_the_limit_for_what_is_loaded_is_for_nothing_else(nursery: Nursery) -> None:
    name = nursery.module(
        """
        import time
        def load(argument):
            pass
        def prepare(argument):
            time.sleep(1.5)
            return {}
        """
    )
    zygote = nursery.start("", load=f"{name}:load", prepare=f"{name}:prepare")

    zygote.wait_ready(StartLimits(load=1.0))

    assert zygote.load_sec is not None


# What can go wrong before that.


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


def test_neither_the_working_directory_nor_further_paths_shadow_what_the_interpreter_imports(nursery: Nursery) -> None:
    work = nursery.path / "work"
    work.mkdir()
    for folder, name in [(nursery.path, "json"), *((work, it) for it in ("json", "psutil", "pytest_aorta", "select"))]:
        (folder / f"{name}.py").write_text("raise RuntimeError('shadowed')")
    zygote = nursery.start(
        """
        import json, sys
        def run(payload, send):
            here = [path for path in sys.path if path == "" or path.endswith("work")]
            send({"value": [json.__name__, here, sys.path[-1]]})
        """,
        cwd=str(work),
    )

    assert nursery.run(zygote).told == [["json", [], str(nursery.path)]]


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


# What makes forking unsafe.


def against_forking(zygote: Zygote) -> list[str]:
    zygote.wait_ready()
    wait_until(lambda: zygote.against_forking == [] or not zygote.alive(), "the end of what cannot be forked")
    return zygote.against_forking


def test_a_native_thread_is_reported_and_one_that_has_ended_is_not(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import ctypes, threading
        ended = threading.Thread(target=int)
        ended.start()
        ended.join()
        libc = ctypes.CDLL(None)
        thread = ctypes.c_ulong()
        # pause() never returns and touches nothing of Python.
        libc.pthread_create(ctypes.byref(thread), None, libc.pause, None)
        """
    )

    assert against_forking(zygote) == ["started 1 native thread(s)"]


def test_the_pool_of_numpy_s_openblas_does_not_count_and_works_after_the_fork(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import os
        import numpy
        square = numpy.ones((500, 500))
        assert (square @ square)[0, 0] == 500
        def prepare(argument):
            return {"tasks": len(os.listdir("/proc/self/task"))}
        def run(payload, send):
            send({"value": (square @ square).sum()})
        """,
        environ={"OPENBLAS_NUM_THREADS": "3"},
    )

    assert against_forking(zygote) == []
    assert zygote.info["tasks"] == min(3, len(os.sched_getaffinity(0)))
    assert nursery.run(zygote).told == [500.0**3]


@pytest.mark.slow
def test_a_pool_that_torch_has_used_counts_and_one_that_it_has_not_does_not(nursery: Nursery) -> None:
    source = """
        import torch
        def prepare(argument):
            if argument == "computes":
                torch.ones(1_000_000).add_(1)
            return {}
        def run(payload, send):
            send({"value": torch.ones(1_000_000).add_(1).sum().item()})
        """

    environ = {"OMP_NUM_THREADS": "2"}

    (reason,) = against_forking(nursery.start(source, argument="computes", environ=environ))
    assert re.fullmatch(r"started \d native thread\(s\)", reason)
    imports = nursery.start(source, argument="imports", environ=environ)
    assert against_forking(imports) == []
    assert nursery.run(imports).told == [2_000_000.0]


def test_a_device_of_a_gpu_that_is_open_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(process_tree, "_GPU_DEVICES", (str(tmp_path / "nvidia"),))
    with (tmp_path / "nvidia0").open():
        assert f"opened {tmp_path}/nvidia0" in process_tree.reasons_against_forking()
    assert not any("opened" in reason for reason in process_tree.reasons_against_forking())


# The end of the process that has started it.


def test_the_thread_that_has_started_a_zygote_may_end_before_it(nursery: Nursery) -> None:
    """The kernel counts a thread's end as a parent's."""
    started: list[Zygote] = []

    def start() -> None:
        started.append(nursery.start(ECHO))
        started[0].wait_ready()

    for _ in range(5):
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        zygote = started.pop()
        assert nursery.run(zygote).told == [zygote.info["pid"]]
        zygote.close()


#: Its arguments: the folder of a nursery, and where the package ``support`` is.
PARENT = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from support.nursery import Nursery
nursery = Nursery(Path(sys.argv[1]))
nursery.start("import time; open('importing', 'w').close(); time.sleep(600)")
while not os.path.exists(nursery.path / "importing"):
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(600)
"""


def test_nothing_survives_a_parent_that_is_killed_while_a_zygote_imports(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PARENT, str(tmp_path), str(Path(__file__).parents[2])]
    with nursery_at(tmp_path) as nursery:
        with subprocess.Popen(words, env={**os.environ, MARK: nursery.mark}, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"ready\n"
            assert len(nursery.alive()) >= 2
            parent.kill()

        wait_until(lambda: nursery.alive() == [], "the end of everything that the parent had started")


def test_a_zygote_that_is_stopped_is_closed_all_the_same(nursery: Nursery) -> None:
    zygote = nursery.start(ECHO)
    nursery.run(zygote)
    os.kill(zygote.info["pid"], signal.SIGSTOP)

    zygote.close(grace=0.1)

    assert not zygote.alive()
    assert nursery.alive() == []
