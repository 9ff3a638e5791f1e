"""PyCharm shows trials, runs one of them alone and the failed ones again; in need of a package index.

PyCharm itself is a stand-in (`support/pycharm.py`), the plugin that it talks to is the real one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.pip_environments import pip
from support.pycharm import OPTIONS, RERUN_FAILED, ShownTest, shown_tests
from support.stage import Stage

pytestmark = pytest.mark.downstream

WORKLOADS = """
    import os

    class Good:
        def __init__(self, config): pass
        def setup(self): pass
        def run(self):
            print("all is well")
            return {"passed": True}

    class Bad(Good):
        def run(self):
            print("step 17")
            raise ValueError("loss is nan")

    class Broken(Good):
        def setup(self): raise RuntimeError("no such device")
    """

TESTS = """
    import pytest

    class TestMore:
        @pytest.mark.parametrize("number", [1, 2])
        def test_number(self, number): pass
    """

TRIALS = {"Good": "passed", "Bad": "failed", "Broken": "failed"}


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    pip(Path(sys.executable), "install", "--no-deps", "--target", str(folder), "teamcity-messages")
    return folder


@pytest.fixture
def mine(stage: Stage, plugin: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage.write_file("repro/work.py", WORKLOADS)
    stage.write_file("tests/test_it.py", TESTS)
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(stage.path), str(plugin), *([path] if path else [])]))
    return stage


def pycharm(stage: Stage, *arguments: str) -> dict[str, ShownTest]:
    """Run pytest as PyCharm does; what it shows."""
    result = stage.run(*OPTIONS, *arguments)
    assert "INTERNALERROR" not in result.stdout.str()
    return shown_tests(result.stdout.str())


def test_trials_are_shown_with_their_text_and_each_runs_alone(mine: Stage) -> None:
    shown = pycharm(mine, "repro/work.py", "tests", "--aorta-trials", "2")
    trials = {f"repro.work.{name}(local-none-{index})": how for name, how in TRIALS.items() for index in (0, 1)}
    tests = {f"tests.test_it.TestMore.test_number({number})": "passed" for number in (1, 2)}
    assert {name: test.outcome for name, test in shown.items()} == trials | tests
    assert "all is well" in "".join(shown["repro.work.Good(local-none-0)"].text)
    bad = "".join(shown["repro.work.Bad(local-none-1)"].text)
    assert "loss is nan" in bad
    assert "step 17" in bad
    broken = shown["repro.work.Broken(local-none-0)"].text
    assert broken[0] == "test setup failed"
    assert "no such device" in "".join(broken)

    for name in ("repro.work.Bad(local-none-1)", "tests.test_it.TestMore.test_number(2)"):
        target = shown[name].target(mine.path)
        assert target is not None
        alone = pycharm(mine, target, "--aorta-trials", "2")
        assert {name: test.outcome for name, test in alone.items()} == {name: shown[name].outcome}


def test_failed_trials_run_again(mine: Stage) -> None:
    arguments = ("repro/work.py", "tests", "--aorta-trials", "2")
    pycharm(mine, *arguments)
    again = pycharm(mine, *arguments, RERUN_FAILED)
    assert {name: test.outcome for name, test in again.items()} == {
        f"repro.work.{name}(local-none-{index})": "failed" for name in ("Bad", "Broken") for index in (0, 1)
    }


def test_registered_workloads_run_again_but_not_one_trial_alone(mine: Stage) -> None:
    mine.write_file("pytest.ini", "[pytest]\naorta_workload =\n    good\n    bad\naorta_trials = 2")
    mine.register(good="repro.work:Good", bad="repro.work:Bad")
    shown = pycharm(mine)
    trials = {name: test for name, test in shown.items() if "local-none" in name}
    assert {name: test.outcome for name, test in trials.items()} == {
        f"aorta.{name}(local-none-{index})": how
        for name, how in (("good", "passed"), ("bad", "failed"))
        for index in (0, 1)
    }
    # Their ids name no Python element, so PyCharm offers no *Run* for one of them; docs/plugins.md has the way.
    assert all(test.target(mine.path) is None for test in trials.values())
    assert {*pycharm(mine, "aorta::bad[local-none-1]")} == {"aorta.bad(local-none-1)"}
    assert {*pycharm(mine, RERUN_FAILED)} == {f"aorta.bad(local-none-{index})" for index in (0, 1)}
