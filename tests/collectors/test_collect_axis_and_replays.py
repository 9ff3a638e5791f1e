"""Collectors as an axis, whose effect on trials has a verdict, and failed trials that are run again with them."""

from __future__ import annotations

import json

import pytest
from support.fake_distributions import write_distribution
from support.stage import Stage
from support.triage_facts import CRASH, trials

from pytest_aorta.triage.columns import json_data
from pytest_aorta.triage.reading import Results, triage_in_order
from pytest_aorta.triage.replays import ReplayedCell, replayed_cells
from pytest_aorta.triage.starts import with_replays
from pytest_aorta.triage.verdicts import Triage


def test_collectors_are_an_axis_whose_cells_are_compared(stage: Stage) -> None:
    stage.write(flaky=_FLAKY, sees=_SEES, sees_in_rank=_SEES_IN_RANK)
    write_distribution(stage.path, "stage-collectors", {"aorta.collectors": {"sees": "sees:Sees"}})
    done = stage.run("flaky.py", "--aorta-trials=2", "-k", "Once", "--aorta-vary", "collect=none,sees", "-v")
    trials = stage.trials()
    assert {path.split("/")[1] for path in trials} == {"local-collect=none", "local-collect=sees"}
    assert all(bool(trial["collected"]) == ("sees" in path) for path, trial in trials.items())
    # They differ in what observes them, so that neither is a second baseline of the other.
    done.stdout.fnmatch_lines(["  local-collect=none  *baseline*", "    2 of 2: sees: saw 1 process"])
    assert "second baseline" not in done.stdout.str()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--aorta-vary=collect=none,divergence"], "--aorta-vary collect=divergence: it compares all trials of a cell"),
        (["--aorta-vary=collect=none,memory", "--aorta-collect=numerics"], "--aorta-vary collect=... and --aorta-coll"),
        (["--aorta-vary=collect=none,numeric"], "did you mean 'numerics'"),
        (["--aorta-vary=collect=none,rocprof"], "rocprofv3 is not on the trial's PATH"),
    ],
)
def test_an_axis_of_collectors_that_cannot_be_is_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    done = stage.run_here("--aorta-command", "true", *arguments)
    assert done.ret == 4
    done.stderr.fnmatch_lines([f"*{said}*"])


def test_only_fewer_failures_among_replays_of_failed_trials_are_an_effect() -> None:
    def effect(outcomes: str, replays: str) -> ReplayedCell:
        triage = Triage()
        first = trials("none", outcomes)
        for facts in first:
            triage.add(facts)
        failed = [facts for facts in first if facts.is_failure]
        again = trials("none", replays, signatures={"C": CRASH})
        pairs = list(zip(failed, again, strict=True))
        (replayed,) = replayed_cells({first[0].key: pairs}, triage.cells)
        return replayed

    all_again = effect("F" * 10 + "." * 10, "F" * 10)
    assert all_again.p == 1
    assert all_again.lines() == ["10 failed trials run again with collectors: 10 failed again"]
    none_again = effect("F" * 15 + "." * 5, "." * 15)
    assert none_again.changes_rate
    assert "0 failed again; of all trials 15 of 20 without: they change the rate (p = " in none_again.lines()[0]
    assert "0 of 15 replays of failed trials failed with them, 15 of 20 trials without" in none_again.warning
    otherwise = effect("FF..", "CE")  # the second was lost, and says nothing
    assert otherwise.lines() == [
        "1 failed trial run again with collectors: 1 failed again",
        f"1 in another way: {CRASH.text}",
    ]


def test_what_has_nothing_to_collect_or_to_compare_is_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for arguments, said in (
        (["--aorta-collect-on-failure"], "--aorta-collect-on-failure: expected --aorta-collect with the names"),
        (["--aorta-collect=divergence:zoom=0", "--aorta-collect-on-failure"], "divergence compares all trials"),
        (["--aorta-collect=rocprof"], "rocprofv3 is not on the trial's PATH; it comes with ROCm 6.2"),
        (["--aorta-collect=nsys", "--aorta-collect-on-failure"], "nsys"),  # which is not there either
    ):
        done = stage.run_here("--aorta-command", "true", *arguments)
        assert done.ret == 4
        done.stderr.fnmatch_lines([f"*{said}*"])


_FLAKY = """
    import os
    import random
    from pathlib import Path
    from pytest_aorta import Workload, WorkloadResult

    class BySeed(Workload):
        def setup(self):
            pass

        def run(self):
            assert os.environ["API_TOKEN"] == "hush-12345678"
            return WorkloadResult(passed=random.random() < 0.5)

    class Once(Workload):
        def setup(self):
            pass

        def run(self):
            try:
                os.mkdir(Path(__file__).parent / f"begun_{random.random()}")
            except FileExistsError:
                return WorkloadResult(passed=True)
            return WorkloadResult(passed=False)
"""

_SEES = """
    from pathlib import Path
    from pytest_aorta.collectors.contract import Collector, CollectorSummary

    class Sees(Collector):
        in_process = Path(__file__).with_name("sees_in_rank.py")
        needs_torch = False

        def summarize(self, folder, ranks):
            return CollectorSummary(f"saw {len(list(folder.glob('*.seen')))} process")
"""

_SEES_IN_RANK = """
    import os

    class InProcess:
        active = True

        def __init__(self, options, folder, rank):
            self.path = os.path.join(folder, f"process_{os.getpid()}.seen")

        def start(self):
            open(self.path, "w").close()

        def step(self, number):
            pass

        def stop(self):
            pass
"""


@pytest.mark.slow
def test_failed_trials_are_run_again_with_collectors_also_behind_xdist(stage: Stage) -> None:
    stage.write(flaky=_FLAKY, sees=_SEES, sees_in_rank=_SEES_IN_RANK)
    write_distribution(stage.path, "stage-collectors", {"aorta.collectors": {"sees": "sees:Sees"}})
    given = ("--aorta-trials=6", "--aorta-seed=2", "--aorta-extra-env=API_TOKEN=hush-12345678")
    arguments = ("flaky.py", "--aorta-collect=sees", *given)
    done = stage.run(*arguments, "-n2", "--aorta-collect-on-failure")

    all_trials = stage.trials()
    first = {path: trial for path, trial in all_trials.items() if not path.startswith("replay/")}
    replays = {path: trial for path, trial in all_trials.items() if path.startswith("replay/")}
    failed = [path for path, trial in first.items() if trial["exit_status"] == "workload_failed"]
    assert len(first) == 12
    assert all(trial["collected"] == {} for trial in first.values())
    assert {trial["replay_of"]["file"] for trial in replays.values()} == {str(stage.results / path) for path in failed}
    assert {trial["collected"]["sees"]["sentence"] for trial in replays.values()} == {"saw 1 process"}
    assert {trial["workload"]: trial["exit_status"] for trial in replays.values()} == {
        "BySeed": "workload_failed",
        "Once": "ok",
    }
    assert all(first[path]["seeds"] == replays[f"replay/{_cell(path)}"]["seeds"] for path in failed)
    by_seed, once = json.loads((stage.results / "matrix.json").read_text())["replays"]
    number = by_seed["replays"]
    counts = ("failures", "counted", "first_failures", "first_counted")
    assert [by_seed[name] for name in counts] == [number, number, number, 6]
    assert [once[name] for name in counts] == [0, 6, 6, 6]
    assert once["changes_rate"]
    done.stdout.fnmatch_lines(
        [
            f"aorta: {number + 6} failed trials run again with sees",
            f"    {number} of {number} replays: sees: saw 1 process",
            f"    {number} failed trials run again with collectors: {number} failed again",
            "    6 failed trials run again with collectors: 0 failed again; of all trials 6 of 6 without: they change*",
            "warning: Once local-none: collectors change the failure rate: 0 of 6 replays of failed trials failed*",
        ]
    )

    read = Results(stage.results)
    triage = triage_in_order(trial.facts for trial in read)
    from_files = with_replays(triage.table(), triage, read.folder).replays
    written = {effect.key.workload: json.loads(json.dumps(json_data(effect))) for effect in from_files}
    assert written == {"BySeed": by_seed, "Once": once}


def _cell(path: str) -> str:
    workload, _, name = path.partition("/")
    return f"{workload}/local-none/{name}"
