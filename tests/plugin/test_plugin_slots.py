"""``--aorta-slots``: several trials at a time in one pytest process, and nothing else is any different."""

from __future__ import annotations

import pytest
from support.neighbourhood import workloads
from support.stage import Stage

TWO = ("--aorta-slots", "2")


def test_only_what_is_selected_is_started(faulty: Stage) -> None:
    options = (*workloads("passes", "raises"), "--aorta-trials", "3", *TWO)

    def run(*arguments: str) -> list[str]:
        faulty.results = faulty.path / f"run_{len(list(faulty.path.glob('run_*')))}"
        faulty.run_here(*options, *arguments, "--aorta-results-dir", faulty.results.name)
        return faulty.files() if faulty.results.exists() else ["nothing at all"]

    assert run("-k", "passes and 2") == ["passes/trial_2.json"]
    assert run("aorta::raises[local-none-1]", "::passes[local-none-0]") == [
        "passes/trial_0.json",
        "raises/trial_1.json",
    ]
    assert run("--lf") == ["raises/trial_1.json"]
    for arguments in (("--collect-only",), ("--setup-plan",)):
        assert run(*arguments) == ["nothing at all"]


def test_skipped_items_leave_nothing(faulty: Stage) -> None:
    faulty.write(
        conftest="""
        import pytest

        def pytest_collection_modifyitems(items):
            items[1].add_marker(pytest.mark.skip(reason="of a mark"))
        """
    )
    options = (*workloads("passes"), "--aorta-trials", "5", *TWO)
    faulty.run_here(*options).assert_outcomes(passed=4, skipped=1)
    assert not [path for path in faulty.everything() if "trial_1" in path]
    # A hook of the user may do anything before its item. A trial that has a result keeps it when its item is skipped.
    faulty.write(
        conftest="""
        import pytest

        def pytest_runtest_setup(item):
            if "-3]" in item.name:
                pytest.skip("of a hook")
        """
    )
    result = faulty.run_here(*options)
    result.assert_outcomes(passed=4, skipped=1)
    result.stdout.fnmatch_lines(["one after the other, *: pytest_runtest_setup (conftest.py)"])
    assert sorted(faulty.earlier()) == [f"passes/trial_{index}.json" for index in (0, 2, 4)]
    assert len(faulty.files()) == 5


BETWEEN = """
import neighbours
from neighbours import Tells

def test_patches(monkeypatch, tmp_path):
    (tmp_path / "patched").mkdir()
    monkeypatch.setenv("SEEN", "patched")
    monkeypatch.syspath_prepend(tmp_path / "patched")
    monkeypatch.chdir(tmp_path / "patched")
    neighbours.note("one")
    # The next ones start only now.
    assert neighbours.wait_for("started-Last", 3)

def test_runs_a_trial_of_its_own(aorta_run, monkeypatch):
    monkeypatch.setenv("SEEN", "by its own")
    neighbours.note("go")
    record = aorta_run(Tells)
    assert record.exit_status == "ok"
    assert record.result.metrics["SEEN"] == "by its own"
"""


@pytest.mark.slow
def test_what_a_test_patches_is_not_seen_by_trials_that_run_beside_it(beside: Stage) -> None:
    beside.write(
        first="""
        import neighbours

        class First(neighbours.Tells):
            def setup(self): pass
            def run(self): return {"passed": True, "metrics": self.seen()}
        """,
        test_between=BETWEEN,
        last="""
        import neighbours

        class Last(neighbours.Tells):
            def setup(self): super().setup()
            def run(self):
                # The first one ends once the test has patched; all others stay until it has ended.
                kind = "one" if neighbours.count("started-Last") == 1 else "go"
                return {"passed": neighbours.wait_for(kind), "metrics": self.seen()}
        """,
    )
    result = beside.run("first.py", "test_between.py", "last.py", "-o", "aorta_trials=5", *TWO)
    result.assert_outcomes(passed=12)
    found = [trial["result"]["metrics"] for path, trial in beside.trials().items() if path.startswith("Last")]
    assert [(seen["SEEN"], seen["cwd"], seen["path"]) for seen in found] == [(None, str(beside.path), [])] * 5
