"""What a trial imports that its zygote could have imported before, and what keeps it from being imported before."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_aorta.launch.child import workload_main
from pytest_aorta.launch.child.workload_main import LearnedImports
from pytest_aorta.trials.seeding import ProcessSeeds


class Trial:
    """Imports under a watch, in this process."""

    def __init__(self, path: Path) -> None:
        self.site = path / "site-packages"
        self.own = path / "own"
        self.events: list[Any] = []
        for folder in (self.site, self.own):
            folder.mkdir()
            sys.path.insert(0, str(folder))

    @cached_property
    def watch(self) -> LearnedImports:
        """Starts when it is first asked for: pytest sets a variable between setup and call."""
        return LearnedImports(ProcessSeeds(7), self.events.append)

    def load(self, name: str) -> None:
        assert self.watch is not None
        importlib.import_module(name)

    def install(self, **modules: str) -> None:
        for name, source in modules.items():
            file = self.site / f"lazy_{name.replace('__', '/')}.py"
            if name.endswith("__"):
                file = self.site / f"lazy_{name.removesuffix('__')}" / "__init__.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(source)
        importlib.invalidate_caches()

    def write(self, name: str, source: str) -> None:
        (self.own / f"{name}.py").write_text(source)
        importlib.invalidate_caches()

    @property
    def imported(self) -> list[str]:
        return [event["module"] for event in self.events if event["type"] == "imported"]

    @property
    def note(self) -> str | None:
        """Why it has ended."""
        notes = [event["note"] for event in self.events if event["type"] == "imports_over"]
        return notes[0] if notes else "it goes on"


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trial]:
    monkeypatch.chdir(tmp_path)
    path, finders, argv, modules = list(sys.path), list(sys.meta_path), list(sys.argv), set(sys.modules)
    with warnings.catch_warnings():
        trial = Trial(tmp_path)
        trial.install(first="import lazy_second", second="", third="")
        yield trial
    sys.path[:], sys.meta_path[:], sys.argv[:] = path, finders, argv
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_imports_from_distributions_are_reported_in_order_and_without_what_they_import(trial: Trial) -> None:
    trial.install(third__="", third__part="import lazy_second")
    for name in ("lazy_third.part", "lazy_first", "lazy_second", "wave"):
        trial.load(name)
    trial.watch.end()

    assert trial.note is None
    assert trial.imported == ["lazy_third", "lazy_third.part", "lazy_first"]


def test_the_workload_s_own_files_are_not_but_what_they_import_is(trial: Trial) -> None:
    trial.write("lazy_own", "import lazy_own_too, lazy_first")
    trial.write("lazy_own_too", "")
    trial.load("lazy_own")

    assert trial.imported == ["lazy_first"]
    assert trial.note == "it goes on"


def test_looking_for_a_module_without_importing_it_has_no_effect(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    trial.load("lazy_second")
    monkeypatch.setenv("AORTA_LAZY", "1")
    assert importlib.util.find_spec("lazy_third") is not None
    with pytest.raises(ModuleNotFoundError):
        trial.load("lazy_missing")

    assert trial.imported == ["lazy_second"]
    assert trial.note == "it goes on"


def _default_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float64)


@pytest.fixture
def settings() -> Iterator[None]:
    """Undone afterwards."""
    handler, recursion = signal.getsignal(signal.SIGUSR1), sys.getrecursionlimit()
    yield
    signal.signal(signal.SIGUSR1, handler)
    sys.setrecursionlimit(recursion)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)


CHANGES: list[tuple[Callable[[pytest.MonkeyPatch], object], str]] = [
    (lambda patch: patch.setenv("AORTA_LAZY", "1"), "os.environ"),
    (lambda patch: sys.path.append("/lazy"), "sys.path"),
    (lambda patch: sys.argv.append("--lazy"), "sys.argv"),
    (lambda patch: patch.chdir("/"), "the working directory"),
    (lambda patch: signal.signal(signal.SIGUSR1, signal.SIG_IGN), "the handlers of signals"),
    (lambda patch: sys.setrecursionlimit(sys.getrecursionlimit() + 1), "the limit of recursion"),
    (_default_dtype, "settings of torch"),
]


@pytest.mark.parametrize(("change", "name"), CHANGES, ids=[name for _, name in CHANGES])
@pytest.mark.usefixtures("settings")
def test_it_ends_before_an_import_that_could_see_a_change(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], object], name: str
) -> None:
    trial.load("lazy_second")
    change(monkeypatch)
    trial.load("lazy_third")
    trial.watch.end()

    assert trial.imported == ["lazy_second"]
    assert trial.note == f"lazy_third: {name} had been changed before it was imported"


EFFECTS = {
    "import os; os.environ['AORTA_LAZY'] = '1'": "its import changes os.environ",
    "import os; os.chdir('/')": "its import changes the working directory",
    "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)": "its import changes the handlers of signals",
    "import random; random.random()": "its import changes random numbers of random",
    "import numpy; numpy.random.seed(0)": "its import changes random numbers of numpy.random",
    "import torch; torch.rand(1)": "its import changes random numbers of torch",
    "import torch; torch.set_default_dtype(torch.float64)": "its import changes settings of torch",
    "import logging; logging.getLogger().setLevel(7)": "its import changes the handlers of logging",
    "import os; os.write(1, b'lazy')": "its import changes the output",
    "raise ImportError('no such library')": "its import raised ImportError",
}


@pytest.mark.parametrize(("source", "said"), EFFECTS.items(), ids=EFFECTS.values())
@pytest.mark.usefixtures("settings")
def test_it_ends_with_an_import_that_leaves_more_than_modules(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], source: str, said: str
) -> None:
    monkeypatch.delenv("AORTA_LAZY", raising=False)
    monkeypatch.setattr("logging.root.level", 30)
    trial.install(second=source)
    for name in ("lazy_second", "lazy_third"):
        try:
            trial.load(name)
        except ImportError:
            pass
    os.environ.pop("AORTA_LAZY", None)

    assert trial.imported == []
    assert trial.note == f"lazy_second: {said}"


def test_it_ends_with_an_import_that_opens_a_gpu(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = iter([[], [], ["/dev/kfd"]])  # a double of the device
    monkeypatch.setattr(workload_main, "open_gpu_devices", lambda: next(opened))
    trial.load("lazy_second")

    assert trial.note == "lazy_second: its import changes the open devices"


def test_it_ends_with_an_import_in_a_thread(trial: Trial) -> None:
    assert trial.watch is not None
    thread = threading.Thread(target=trial.load, args=("lazy_second",))
    thread.start()
    thread.join()
    trial.load("lazy_third")

    assert trial.imported == []
    assert trial.note == "lazy_second: a thread imported it"


def test_a_child_process_of_the_trial_reports_nothing(trial: Trial) -> None:
    assert trial.watch is not None
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        trial.load("lazy_second")
        os.write(write, str(len(trial.events)).encode())
        os._exit(0)
    os.waitpid(pid, 0)

    assert os.read(read, 10) == b"0"
    os.close(read)
    os.close(write)


def test_what_runs_in_every_trial_imports_no_torch_by_itself() -> None:
    code = "import sys, pytest_aorta.launch.child.trial_main; print({'torch', 'numpy', 'scipy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_imports_are_timed_without_those_that_are_part_of_another(trial: Trial) -> None:
    trial.install(first="import lazy_second, time; time.sleep(0.06)", second="import time; time.sleep(0.06)")
    timed = workload_main.TimedImports()
    for name in ("lazy_first", "lazy_second", "lazy_third"):
        importlib.import_module(name)
    spent = timed.end()

    assert spent.keys() == {"lazy_first"}
    assert spent["lazy_first"] > 0.1
    trial.install(fourth="import time; time.sleep(0.06)")
    importlib.import_module("lazy_fourth")
    assert timed.end() == spent
