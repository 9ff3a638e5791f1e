"""A trial that runs more than once in one run: every time has a file and a folder, and the table counts the first."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest
from support.stage import NO_SETTINGS, Stage
from support.stage import counts as outcomes

#: Fails when no trial has run before; says when it has run, and keeps a file.
SECOND = """
import os

def first(name):
    try:
        os.mkdir(name)
    except FileExistsError:
        return False
    return True

class Second:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        time = next(number for number in range(1, 100) if first(f"time_{number}"))
        print("time", time)
        with open(os.path.join(os.environ["AORTA_TRIAL_DIR"], "mine"), "w") as file:
            file.write(str(time))
        return {"passed": time > 1, "metrics": {"time": time}}
"""

#: As pytest-rerunfailures has a failed item run again: the very same one.
AGAIN = """
def pytest_runtest_protocol(item, nextitem):
    from _pytest.runner import runtestprotocol
    for _ in range(2):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if not any(report.failed for report in reports):
            break
    return True
"""

#: As flakefinder has items several times: shallow copies of them.
COPIES = """
import copy
def pytest_collection_modifyitems(items):
    for item in list(items):
        items.append(copy.copy(item))
        items[-1]._initrequest()
"""


@pytest.fixture
def second(stage: Stage) -> Stage:
    stage.write(second=SECOND)
    return stage


def assert_all_apart(stage: Stage, times: dict[str, int]) -> None:
    """Every run of a trial has a file, with artifacts of its own that are what it has written; ``times`` by file."""
    trials = stage.trials()
    assert sorted(trials) == sorted(times)
    for path, record in trials.items():
        folder = (stage.results / path).parent
        time = record["result"]["metrics"]["time"]
        assert (folder / record["artifacts"]["stdout"]).read_text() == f"time {time}\n"
        assert (folder / record["artifacts"]["files"] / "mine").read_text() == str(time)
    assert sorted(record["result"]["metrics"]["time"] for record in trials.values()) == sorted(times.values())


def failed_in_table(stage: Stage) -> list[tuple[int, int]]:
    cells = json.loads((stage.results / "matrix.json").read_text())["cells"]
    return [(cell["failures"], cell["counted"]) for cell in cells]


def test_a_rerun_replaces_no_failure(second: Stage) -> None:
    second.write(conftest=AGAIN)
    # Resumed or not: a plugin that runs a failed item again wants to see something new.
    done = second.run_here("second.py", "--aorta-resume", "--junitxml", "out.xml")
    assert outcomes(done) == {"failed": 1, "passed": 1}
    assert_all_apart(second, {"Second/trial_0.json": 1, "Second/trial_0.repeat_1.json": 2})
    assert failed_in_table(second) == [(1, 1)]
    done.stdout.fnmatch_lines(["1 repeat of the same trials not in the table: 1 ok (for more trials: --aorta-trials)"])
    for case in ElementTree.parse(second.path / "out.xml").iter("testcase"):
        assert [each.get("name") for each in case.iter("property")].count("aorta_exit_status") == 1


@pytest.mark.slow
@pytest.mark.parametrize("way", [(), pytest.param(("-n", "2"), marks=pytest.mark.long)])
def test_copies_of_an_item_are_all_kept(second: Stage, way: tuple[str, ...]) -> None:
    second.write(conftest=COPIES)
    done = second.run("second.py", "--aorta-trials", "2", *way)
    assert outcomes(done) == {"failed": 1, "passed": 3}
    names = [f"Second/trial_{index}{repeat}.json" for index in range(2) for repeat in ("", ".repeat_1")]
    assert_all_apart(second, dict(zip(names, (1, 2, 3, 4), strict=True)))
    ((_, counted),) = failed_in_table(second)
    assert counted == 2


def test_dist_each_is_refused(second: Stage) -> None:
    done = second.run("second.py", "-n", "2", "--dist", "each")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: --dist each would run every trial in each worker; *--aorta-trials N"])


@pytest.mark.usefixtures("as_users_have_it")
def test_dist_each_is_refused_where_only_a_test_starts_trials(second: Stage) -> None:
    """Not before: without an option of ours, nobody knows that there will be trials."""
    second.write(test_it="import second\ndef test_trial(aorta_run): aorta_run(second.Second)\ndef test_plain(): pass")
    done = second.run("-n", "2", "--dist", "each", env=NO_SETTINGS)
    done.assert_outcomes(passed=2, errors=2)
    done.stdout.fnmatch_lines(["*UsageError: --dist each would run every trial in each worker; *--aorta-trials N"])
    assert not second.results.exists()


def test_the_count_of_pytest_repeat_is_refused(second: Stage) -> None:
    second.write(
        conftest="""
        def pytest_addoption(parser):
            parser.addoption("--count", default=1, type=int)
        def pytest_configure(config):
            config.pluginmanager.register(object(), "repeat")
        """
    )
    done = second.run_here("second.py", "--count", "3")
    done.stdout.fnmatch_lines(["*--count 3 of pytest-repeat*for 3 trials of every cell: --aorta-trials 3"])
    assert done.ret == pytest.ExitCode.INTERRUPTED
    second.run_here("second.py", "--count", "1")
    assert second.files() == ["Second/trial_0.json"]
