"""Trials of several ranks, in which rank 1 breaks something: the same record whatever starts the ranks.

``elastic`` is what ``--aorta-launcher auto`` is outside of a launcher, ``external`` what it is under torchrun.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage, counts, text

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent

LAUNCHERS = ("elastic", "torchrun", "external")

#: What is to be found, by what rank 1 does: exit status; phase and kind of the failure; a field that says more.
EXPECTED: dict[str, tuple[str, tuple[str, str] | None, tuple[str, Any] | None]] = {
    "nothing": ("ok", None, None),
    "segfaults": ("workload_failed", ("run", "signal"), ("signal", "SIGSEGV")),
    "leaves_early": ("workload_failed", ("run", "exit_code"), ("exit_code", 0)),
    "hangs_alone": ("timeout", ("run", "timeout"), None),
    "raises": ("workload_failed", ("run", "exception"), ("type", "RuntimeError")),
    "returns_false": ("workload_failed", ("run", "result"), None),
    "hangs": ("timeout", ("run", "timeout"), None),
    "setup_raises": ("infrastructure_failed", ("setup", "exception"), ("type", "RuntimeError")),
}

#: Real torchrun takes seconds for each trial.
PARTS = {"elastic": list(EXPECTED), "torchrun": list(EXPECTED)[:3], "external": list(EXPECTED)}

#: The deadline in seconds. Real torchrun starts three interpreters before it passes.
DEADLINES = {"elastic": "4", "torchrun": "15", "external": "5"}

CASES = [(launcher, part) for launcher in LAUNCHERS for part in PARTS[launcher]]


#: Those that rank 1 does after a step.
WITH_STEPS = ("segfaults", "leaves_early", "hangs_alone")


@dataclass(frozen=True)
class Played:
    """All parts, played under one launcher."""

    launcher: str
    stage: Stage
    done: pytest.RunResult

    def trial(self, part: str) -> dict[str, Any]:
        """Its trial file."""
        return self.stage.trial(f"Gloo/trial_{PARTS[self.launcher].index(part)}.json")


def launch(stage: Stage, launcher: str, *arguments: str) -> pytest.RunResult:
    """Run pytest so that ``launcher`` starts the ranks."""
    if launcher == "external":
        return stage.torchrun(2, *arguments)
    chosen = () if launcher == "elastic" else ("--aorta-launcher", launcher)
    return stage.run(*arguments, *chosen)


@pytest.fixture(scope="module")
def plays(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Played]:
    """One run per launcher, when it is first asked for."""

    @cache
    def play(launcher: str) -> Played:
        stage = Stage(tmp_path_factory.mktemp(launcher) / "stage")
        stage.copy(HERE / "gloo_workloads.py")
        script = ("--aorta-trials", str(len(PARTS[launcher])), "--aorta-config", f"script={'.'.join(PARTS[launcher])}")
        done = launch(stage, launcher, "gloo_workloads.py", *script, "--aorta-timeout", DEADLINES[launcher])
        stage.close()
        return Played(launcher, stage, done)

    return play


@pytest.fixture
def played(plays: Callable[[str], Played], request: pytest.FixtureRequest) -> Played:
    """The run of the launcher that the test asks for."""
    return plays(request.getfixturevalue("launcher"))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_one_file_per_trial_and_one_terminal(played: Played, launcher: str) -> None:
    parts = PARTS[launcher]
    assert played.stage.files() == [f"Gloo/trial_{index}.json" for index in range(len(parts))]
    assert played.done.ret == 1
    errors = {"errors": 1} if "setup_raises" in parts else {}
    assert counts(played.done) == {"failed": len(parts) - 1 - len(errors), "passed": 1, **errors}
    assert text(played.done).count("test session starts") == 1
    if launcher != "torchrun":
        assert "workload_failed in run: RuntimeError: rank 1: rank 1 has a bug" in played.done.stdout.str()
    assert "workload_failed in run: rank 1: ended by SIGSEGV in run()" in played.done.stdout.str()


@pytest.mark.parametrize(("launcher", "part"), CASES)
def test_status_and_root_cause(played: Played, launcher: str, part: str) -> None:
    trial = played.trial(part)
    status, cause, more = EXPECTED[part]
    failure = trial["failure"]
    found = failure and (failure["phase"], failure["kind"])
    assert (trial["exit_status"], found) == (status, cause), failure
    if part == "hangs":
        if launcher != "external":  # there, one rank may be ended before the other, which notices
            assert failure["rank"] == 1
            missing = r"rank 1 is missing: \w+\(\) at gloo_workloads.py line \d+.*; rank 0: all_reduce in \w+\(\) at .*"
            assert re.search(missing, failure["message"])
    elif cause is not None:
        assert (failure["rank"], failure["message"][:8]) == (1, "rank 1: ")
    if more is not None:
        assert failure[more[0]] == more[1]
    if part == "hangs_alone":
        # Under an outer launcher, every rank has a folder of its own.
        stacks = "trial_3.rank_1/stacks.log" if launcher == "external" else failure["stacks"]
        assert "gloo_workloads.py" in (played.stage.results / "Gloo" / stacks).read_text()


@pytest.mark.parametrize(("launcher", "part"), CASES)
def test_every_rank_has_a_record_and_logs(played: Played, launcher: str, part: str) -> None:
    first, second = played.trial(part)["ranks"]
    cause = EXPECTED[part][1]
    if cause is None:
        for rank in (first, second):
            assert (rank["passed"], rank["exit_code"], rank["failure"]) == (True, 0, None)
    else:
        assert (second["failure"]["phase"], second["failure"]["kind"]) == cause
        assert not second["collateral"]
    if part in ("returns_false", "hangs_alone"):
        assert (first["passed"], first["failure"]) == (True, None)
        assert second["passed"] is (False if part == "returns_false" else None)
    folder = played.stage.results / "Gloo"
    for number, rank in enumerate((first, second)):
        assert rank["rank"] == number
        if part != "setup_raises":
            assert f"rank {number} begins\n" in (folder / rank["stdout"]).read_text()
        assert (folder / rank["stderr"]).exists()
    if part == "segfaults":
        assert (second["signal"], second["exit_code"]) == ("SIGSEGV", None)
        assert "Fatal Python error: Segmentation fault" in (folder / second["stderr"]).read_text()


@pytest.mark.parametrize(("launcher", "part"), CASES)
def test_the_result_is_that_of_all_ranks(played: Played, launcher: str, part: str) -> None:
    result, cause = played.trial(part)["result"], EXPECTED[part][1]
    assert result["passed"] is (cause is None)
    if cause is None:
        assert result["failure_details"] == []
    else:
        assert result["failure_count"] >= 1
        assert (1, *cause) in [(each.get("rank"), each["phase"], each["kind"]) for each in result["failure_details"]]
    if part in ("segfaults", "leaves_early", "raises", "hangs"):
        assert result["elapsed_sec"] is result["total_iterations"] is None
    if part in ("nothing", "hangs_alone"):  # what rank 0 has found is kept
        assert result["metrics"]["total"] == 3.0


@pytest.mark.parametrize(("launcher", "part"), [case for case in CASES if case[1] in WITH_STEPS])
def test_the_last_step_of_a_rank_is_known(played: Played, launcher: str, part: str) -> None:
    trial = played.trial(part)
    assert "in run(), after step 637 of 1000" in trial["failure"]["message"]
    assert "in run(), after step 637 of 1000" in trial["ranks"][1]["failure"]["message"]
    assert not [path for path in played.stage.everything() if path.endswith((".steps", ".events"))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Stage]]:
    """Trials of ``fsdp``, run by every launcher: two by the one that needs another rendezvous for the second."""
    stages = {}
    for launcher in LAUNCHERS:
        stage = stages[launcher] = Stage(tmp_path_factory.mktemp(f"fsdp_{launcher}") / "stage")
        trials = 2 if launcher == "external" else 1
        done = launch(stage, launcher, "--aorta-workload", "fsdp", "--aorta-trials", str(trials), "--aorta-steps", "8")
        assert (done.ret, counts(done)) == (0, {"passed": trials}), text(done)
    yield stages
    for stage in stages.values():
        stage.close()


def test_trials_of_fsdp_are_the_same_under_every_launcher(trained: dict[str, Stage]) -> None:
    trials = [trial for stage in trained.values() for trial in stage.trials().values()]
    assert [trial["exit_status"] for trial in trials] == ["ok"] * 4
    first = trials[0]
    for trial in trials[1:]:
        assert list(trial) == list(first)
        assert list(trial["result"]["metrics"]) == list(first["result"]["metrics"])
        assert trial["result"]["metrics"]["losses"] == first["result"]["metrics"]["losses"]
        assert trial["result"]["metrics"]["weights_checksum"] == first["result"]["metrics"]["weights_checksum"]
        assert trial["env"]["process"]["torch_threads"] == first["env"]["process"]["torch_threads"]
        assert [sorted(record) for record in trial["ranks"]] == [sorted(record) for record in first["ranks"]]


def test_every_trial_has_a_rendezvous_of_its_own(trained: dict[str, Stage]) -> None:
    ports = [trial["env"]["env_vars"]["MASTER_PORT"] for trial in trained["external"].trials().values()]
    assert len(set(ports)) == 2, ports
