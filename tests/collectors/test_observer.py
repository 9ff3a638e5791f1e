"""What collectors change in the trials, and failed trials that are run again with them."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from support.fake_distributions import write_distribution
from support.stage import Stage
from support.triage_facts import CRASH, trials

from pytest_aorta.plan import Selection
from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.columns import plain
from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.judging import LEVEL
from pytest_aorta.triage.observer import ObserverEffect, replay_effects
from pytest_aorta.triage.reading import Results, triage_in_order
from pytest_aorta.triage.starts import with_replays
from pytest_aorta.triage.verdicts import Table, Triage


def _table(*cells: list[TrialFacts], sequential: bool = False) -> Table:
    triage = Triage(TriageSettings(sequential=sequential))
    for facts in (facts for cell in cells for facts in cell):
        triage.add(facts)
    return triage.table()


def _in_turns(name: str, observed: str, alone: str, slower: float = 1.0) -> list[TrialFacts]:
    """A cell in which every other trial runs with collectors, and takes so many times as long for a step."""
    outcomes = "".join(map("".join, zip(observed, alone, strict=True)))
    facts = trials(name, outcomes, step_ms=(10 * slower, 10, 10.2 * slower, 10.2))
    return [replace(each, observed=each.index % 2 == 0) for each in facts]


def test_the_share_is_spread_evenly_and_the_first_trial_has_collectors() -> None:
    def with_collectors(share: float) -> list[int]:
        selection = Selection(collect=("numerics",), collect_share=share)
        return [index for index in range(10) if selection.collectors_of(index)]

    assert with_collectors(1.0) == list(range(10))
    assert with_collectors(0.5) == [0, 2, 4, 6, 8]
    assert with_collectors(0.25) == [0, 4, 8]
    assert Selection(collect=("numerics",), collect_on_failure=True).collectors_of(0) == ()


def test_a_changed_rate_is_a_finding_and_the_steps_have_an_interval() -> None:
    changed = _in_turns("none", "FFFFFFF" + "." * 13, "F" * 18 + "..", slower=1.1)
    same = _in_turns("omp_1", "FF" + "." * 18, "FFF" + "." * 17)
    table = _table(changed, same)
    found = {effect.key.cell: effect for effect in table.observer}
    assert (found["local-none"].observed, found["local-none"].alone) == ((7, 20), (18, 20))
    assert found["local-none"].speed.ratio == pytest.approx(1.1)
    assert found["local-none"].speed.kind == "slower"
    (line,) = found["local-none"].lines()
    assert line.startswith("with collectors 7 of 20 trials failed, without 18 of 20: they change the rate (p = ")
    assert line.endswith("; steps +10.0% (9.3 to 10.7%)")
    assert [text for text in table.warnings if "collectors" in text] == [found["local-none"].warning]
    assert "no change of the rate is shown (p = 0.5); steps +0.0% " in found["local-omp_1"].lines()[0]


def test_clean_halves_are_called_different_as_rarely_as_the_level_says() -> None:
    draw = random.Random(8)

    def half() -> str:
        return "".join(draw.choice("..F") for _ in range(20))

    effects = [effect for _ in range(200) for effect in _table(_in_turns("none", half(), half())).observer]
    assert len(effects) == 200
    assert sum(effect.changes_rate for effect in effects) <= 200 * LEVEL


def test_the_level_holds_for_looks_after_every_trial_where_these_decide_the_end() -> None:
    draw, called = random.Random(9), {True: 0, False: 0}
    for _ in range(60):
        drawn = ["".join(draw.choice(".F") for _ in range(30)) for _ in "ab"]
        for sequential in called:
            looks = (_in_turns("none", drawn[0][:end], drawn[1][:end]) for end in range(6, 31, 3))
            effects = (_table(facts, sequential=sequential).observer[0] for facts in looks)
            called[sequential] += any(effect.changes_rate for effect in effects)
    assert called[True] <= 60 * LEVEL < called[False]


def test_only_fewer_failures_among_replays_of_failed_trials_are_an_effect() -> None:
    def effect(outcomes: str, replays: str) -> ObserverEffect:
        triage = Triage()
        first = trials("none", outcomes)
        for facts in first:
            triage.add(facts)
        failed = [facts for facts in first if facts.is_failure]
        again = trials("none", replays, signatures={"C": CRASH})
        pairs = list(zip(failed, again, strict=True))
        (found,) = replay_effects({first[0].key: pairs}, triage.cells, triage.settings.speed_margin)
        return found

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
        (
            ["--aorta-collect=numerics", "--aorta-collect-share=50%", "--aorta-collect-on-failure"],
            "--aorta-collect-on-failure and --aorta-collect-share: use one of them",
        ),
        (["--aorta-collect=divergence:zoom=0", "--aorta-collect-share=0.5"], "divergence compares all trials"),
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
    by_seed, once = json.loads((stage.results / "matrix.json").read_text())["observer"]
    number = by_seed["observed"][0]
    assert (by_seed["observed"], by_seed["alone"]) == ([number, number], [number, 6])
    assert (once["observed"], once["alone"]) == ([0, 6], [6, 6])
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
    from_files = with_replays(triage.table(), triage, read.folder).observer
    written = {effect.key.workload: json.loads(json.dumps(plain(effect))) for effect in from_files}
    assert written == {"BySeed": by_seed, "Once": once}

    done = stage.run(*arguments, "--aorta-collect-share=50%")
    assert [bool(trial["collected"]) for path, trial in stage.trials().items() if "BySeed/" in path][:6] == [
        True,
        False,
    ] * 3
    done.stdout.fnmatch_lines(
        ["    3 of 3: sees: saw 1 process", "    with collectors * of 3 trials failed, without *"]
    )


def _cell(path: str) -> str:
    workload, _, name = path.partition("/")
    return f"{workload}/local-none/{name}"
