"""What is taken of a record, and what the trials of a cell come to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import record

from pytest_aorta.triage.cells import CellTrials
from pytest_aorta.triage.facts import CellKey, Outcome, Place, classify_outcome, facts_of, steady_steps, summarize_steps
from pytest_aorta.triage.reading import Results

PHASES = ("launch", "import", "setup", "run", "cleanup")

OUTCOMES: dict[tuple[str, str], Outcome] = {
    **{("workload_failed", phase): "failed" for phase in PHASES},
    **{("timeout", phase): "did not run" for phase in ("launch", "import", "setup")},
    **{("timeout", phase): "timeout" for phase in ("run", "cleanup")},
    **{("infrastructure_failed", phase): "did not run" for phase in ("launch", "import", "setup")},
    **{("infrastructure_failed", phase): "infrastructure" for phase in ("run", "cleanup")},
    ("ok", "cleanup"): "ok",
}


def failed(status: str, phase: str = "run", kind: str = "exception", **result: Any) -> dict[str, Any]:
    failure = {"phase": phase, "kind": "timeout" if status == "timeout" else kind, "message": "m"}
    return record(exit_status=status, failure=failure, result={"passed": status == "ok", **result})


def test_the_outcome_follows_from_status_and_phase() -> None:
    for main_work_started in [None, True]:
        for status, phase in OUTCOMES:
            trial = failed(status, phase, main_work_started=main_work_started)
            assert classify_outcome(trial) == OUTCOMES[status, phase]


def test_what_did_not_begin_its_main_work_did_not_run() -> None:
    cases: list[tuple[dict[str, Any], Outcome]] = [
        *((failed("workload_failed", phase, main_work_started=False), "did not run") for phase in PHASES),
        *((failed("infrastructure_failed", phase, main_work_started=False), "did not run") for phase in PHASES),
        (failed("timeout", main_work_started=False), "timeout"),  # a hang after the setup
        (record(result={"passed": True, "main_work_started": False}), "ok"),
    ]
    for trial, outcome in cases:
        assert classify_outcome(trial) == outcome


def ended(phase: str, kind: str = "timeout", **changes: Any) -> dict[str, Any]:
    return {"rank": 0, "failure": {"phase": phase, "kind": kind, "message": "m"}, **changes}


def test_a_deadline_that_passed_before_run_of_a_rank_is_a_loss() -> None:
    cases: list[tuple[dict[str, Any], Outcome]] = [
        ({"ranks": [ended("run"), ended("run")]}, "timeout"),
        ({"ranks": [ended("run"), ended("setup")]}, "did not run"),
        ({"ranks": [ended("run"), ended("import", "stall")]}, "did not run"),
        ({"ranks": [ended("run"), ended("setup", "signal")]}, "timeout"),
        ({"ranks": [ended("run"), ended("run", "rank")]}, "did not run"),
        ({"ranks": [ended("run"), {"rank": 1, "failure": None}]}, "timeout"),
        ({"ranks": [ended("setup")], "elastic": {"attempts": [{"attempt": 0}]}}, "timeout"),
    ]
    for changes, outcome in cases:
        assert classify_outcome({**failed("timeout"), **changes}) == outcome


def lost(message: str, phase: str = "import", kind: str = "exception", **changes: Any) -> dict[str, Any]:
    failure = {"phase": phase, "kind": kind, "message": message, "type": changes.pop("type", None)}
    status = changes.pop("exit_status", "infrastructure_failed")
    return record(exit_status=status, failure=failure, result={"passed": False}, **changes)


FULL = "[Errno 28] No space left on device: '/scratch/x'"
SHARED = {
    "a broken preparation": [lost("No module named 'x'", wall_clock_sec=None)] * 2,
    "an import that hung": [
        lost("the deadline of 1 s passed", kind="timeout", exit_status="timeout", wall_clock_sec=None)
    ]
    * 2,
    "a host that died": [
        lost("the host that ran this trial died: node7 is gone", "run"),
        lost("there is no host left to run it: node7 is gone", "launch", wall_clock_sec=None),
    ],
    "the end of a run": [
        lost("interrupted: Ctrl-C", "run", "signal"),
        lost("interrupted: Ctrl-C", "launch", "signal", wall_clock_sec=None),
    ],
    "a full disk": [
        lost(FULL, "run", type="OSError", exit_status="workload_failed"),
        lost("rank 1: [Errno 28] No space left on device", "setup", type="OSError"),
    ],
}


def test_what_has_ended_several_trials_is_one_event() -> None:
    for what in SHARED:
        one, other = (facts_of(each, "trial_0.json") for each in SHARED[what])
        assert one.event is not None
        assert one.event == other.event
        assert not one.is_counted
        assert (one.outcome == "interrupted") == (what == "the end of a run")
        found = cell(*SHARED[what], record()).statistics
        assert (found.lost, found.loss_events, found.tally("event")) == (2, 1, {one.event: 2})


def test_what_has_ended_one_trial_is_an_event_of_its_own() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (lost("boom", "setup"), lost("boom", "setup")),
        (lost("the xdist worker that ran this trial died", "launch", "signal", wall_clock_sec=None),) * 2,
        (lost("a", wall_clock_sec=None), lost("b", wall_clock_sec=None)),
        (lost("a", wall_clock_sec=None, host="n1"), lost("a", wall_clock_sec=None, host="n2")),
        (
            lost("interrupted: SIGTERM", "run", "signal", env={"env_vars": {"SLURM_JOB_ID": "1"}}),
            lost("interrupted: SIGTERM", "run", "signal", env={"env_vars": {"SLURM_JOB_ID": "2"}}),
        ),
    ]
    for one, other in cases:
        found = cell(one, other).statistics
        assert (found.lost, found.loss_events) == (2, 2)


def test_a_failure_of_the_workload_is_no_event() -> None:
    torch_is_full = lost("unable to write to file </torch_1>: No space left on device (28)", "run", type="RuntimeError")
    for each in (record(), failed("workload_failed"), {**torch_is_full, "exit_status": "workload_failed"}):
        found = facts_of(each, "trial_0.json")
        assert (found.event, found.is_counted) == (None, True)


def test_only_a_run_that_came_to_its_end_has_step_times() -> None:
    cases: list[tuple[dict[str, Any], int | None]] = [
        (record(result={"passed": True, "step_times_ms": [9.0, 5.0, 5.0]}), 2),
        (failed("ok", "cleanup", step_times_ms=[9.0, 5.0, 5.0]), 2),
        (failed("workload_failed", kind="result", step_times_ms=[9.0, 5.0, 5.0]), 2),
        (record(result={"passed": True, "step_times_ms": []}), None),
        (record(result={"passed": True, "elapsed_sec": 5.0}), None),
        *((failed("workload_failed", kind=kind, step_times_ms=[9.0, 5.0]), None) for kind in ("exception", "signal")),
        *((failed("workload_failed", kind=kind, step_times_ms=[9.0, 5.0]), None) for kind in ("exit_code", "rank")),
        (failed("timeout", step_times_ms=[9.0, 5.0]), None),
        (failed("infrastructure_failed", step_times_ms=[9.0, 5.0]), None),
    ]
    for trial, steps in cases:
        found = facts_of(trial, "trial_0.json").steps
        assert (found and len(found.sorted_ms)) == steps


def test_zero_iterations_count_only_where_a_workload_counts_what_it_has_executed() -> None:
    cases: list[tuple[dict[str, Any], int | None]] = [
        ({"total_iterations": 0, "executed_iterations": None}, None),
        ({"total_iterations": None}, None),
        ({"total_iterations": 50}, 50),
        ({"total_iterations": 0, "executed_iterations": 3}, 3),
        ({"total_iterations": 50, "executed_iterations": 0}, 0),
    ]
    for result, iterations in cases:
        assert facts_of(record(result={"passed": True, **result}), "trial_0.json").iterations == iterations


def test_the_place_of_a_trial_is_what_the_run_or_else_the_scheduler_gave_it() -> None:
    cases: list[tuple[dict[str, Any], Place]] = [
        ({"imposed": {"devices": [3]}, "side_by_side": {"slot": 2, "job": "17"}}, Place("n", (3,), 2, "17")),
        ({"imposed": {"devices": [3]}, "env": {"env_vars": {"CUDA_VISIBLE_DEVICES": "0"}}}, Place("n", (3,))),
        ({"imposed": {"devices": []}, "env": {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}}, Place("n")),
        ({"env": {"env_vars": {"CUDA_VISIBLE_DEVICES": "4,5"}}}, Place("n", (4, 5))),
        ({"env": {"env_vars": {"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}}}, Place("n")),
        # In a job, the devices that a process sees are counted from 0.
        (
            {"env": {"env_vars": {"SLURM_JOB_GPUS": "6", "CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "9"}}},
            Place("n", (6,), None, "9"),
        ),
        # A cell that asks for a device is not at a place: the device is what is tried.
        (
            {
                "env": {"env_vars": {"HIP_VISIBLE_DEVICES": "1"}},
                "request": {"overlay": {"HIP_VISIBLE_DEVICES": "1"}},
            },
            Place("n"),
        ),
    ]
    for of_record, place in cases:
        assert facts_of(record(host="n", **of_record), "trial_0.json").place == place


OF_AORTA = """
{
"schema_version": "0.1", "trial_id": "fsdp_d0_m0_t3", "workload": "fsdp",
"execution_env": {"kind": "docker", "name": "rocm7", "image": "<image-ref>", "digest": "sha256:0",
    "venv": null, "rocm": null, "source_package": "aorta"},
"mitigations_applied": ["tf32_off", "xnack"], "config": {"lr": 0.1}, "env": {"hostname": "node7"},
"result": {"passed": false, "failure_count": 2, "first_failure_iteration": 7,
    "failure_details": [{"kind": "non_finite", "iteration": 7}], "total_iterations": 50,
    "step_times_ms": [82.5, 80.0, 80.0], "elapsed_sec": 4.5, "metrics": {}},
"wall_clock_sec": 25.1, "exit_status": "workload_failed"
}
"""


def test_a_record_of_aortas_own_has_facts(tmp_path: Path) -> None:
    (tmp_path / "fsdp").mkdir()
    (tmp_path / "fsdp" / "trial_3.json").write_text(OF_AORTA)
    [facts] = [trial.facts for trial in Results(tmp_path)]
    assert facts.key == CellKey("fsdp", "rocm7-tf32_off+xnack")
    assert (facts.environment, facts.mitigations, facts.index) == ("rocm7", ("tf32_off", "xnack"), 3)
    assert (facts.outcome, facts.first_failure_iteration, facts.wall_sec) == ("failed", 7, 25.1)
    assert facts.signature is not None
    assert facts.signature.text == "non_finite"
    assert facts.steps is not None
    assert facts.place == Place()


def cell(*trials: dict[str, Any]) -> CellTrials:
    found = CellTrials(CellKey("probe", "local-none"), "local", ("none",))
    for index, trial in enumerate(trials):
        found.add(facts_of({**trial, "trial_index": index}, f"trial_{index}.json"))
    return found


def test_infrastructure_is_shown_and_never_counts() -> None:
    lost, broken = failed("infrastructure_failed"), failed("infrastructure_failed", "setup")
    found = cell(record(), lost, broken, failed("workload_failed"), failed("timeout"), lost).statistics
    assert (found.failures, found.counted, found.total) == (2, 3, 6)
    assert found.rate == pytest.approx(2 / 3)
    assert found.trials == {
        "ok": (0,),
        "failed": (3,),
        "timeout": (4,),
        "infrastructure": (1, 5),
        "interrupted": (),
        "in doubt": (),
        "did not run": (2,),
    }
    assert sum(len(each.trials) for each in found.signatures) == 2
    assert not found.did_not_run


def test_a_cell_of_which_no_trial_counts_has_no_rate() -> None:
    for trials in ([], [failed("infrastructure_failed")]):
        found = cell(*trials).statistics
        assert found.rate is None
        assert (found.rate_interval.low, found.rate_interval.high) == (0, 1)
        assert not found.did_not_run
    assert cell(failed("infrastructure_failed", "import")).statistics.did_not_run


def test_signatures_are_counted_with_their_trials_and_ranks_the_most_frequent_first() -> None:
    def bad(kind: str, rank: int | None = None) -> dict[str, Any]:
        trial = failed("workload_failed", kind="exception")
        trial["failure"] |= {"type": kind, "rank": rank}
        return trial

    found = cell(bad("A"), bad("B"), bad("C", 3), bad("C", 0), bad("C", 3), bad("B")).statistics.signatures
    assert [(each.signature.type, each.trials, each.ranks) for each in found] == [
        ("C", (2, 3, 4), (0, 3)),
        ("B", (1, 5), ()),
        ("A", (0,), ()),
    ]


def test_equally_frequent_signatures_are_in_the_order_of_their_trials_however_these_ended() -> None:
    trials = [
        facts_of({**failed("workload_failed", kind=kind), "trial_index": index}, f"{index}.json")
        for index, kind in enumerate(("exception", "exit_code", "result"))
    ]
    orders = [trials, trials[::-1]]
    found = []
    for order in orders:
        each = CellTrials(trials[0].key, "local", ("none",))
        for facts in order:
            each.add(facts)
        found.append([count.trials for count in each.statistics.signatures])
    assert found == [[(0,), (1,), (2,)]] * 2


def test_the_stream_ends_before_the_first_trial_that_still_runs() -> None:
    found = CellTrials(CellKey("probe", "local-none"), "local", ("none",))
    for index in range(4):
        found.trials[index] = None
    for index in (0, 2, 3):
        trial = failed("infrastructure_failed") if index == 0 else record()
        found.add(facts_of({**trial, "trial_index": index}, f"trial_{index}.json"))
    assert [facts.index for facts in found.stream()] == []
    found.add(facts_of({**record(), "trial_index": 1}, "trial_1.json"))
    assert [facts.index for facts in found.stream()] == [1, 2, 3]


TIMES = st.lists(st.floats(min_value=1e-3, max_value=1e6), min_size=1, max_size=300)


def steady(times: list[object]) -> list[float]:
    found = steady_steps(times)
    return [] if found is None else list(found.sorted_ms)


def test_the_first_tenth_of_a_trial_is_warm_up_and_at_least_one_step() -> None:
    cases: list[tuple[int, int]] = [(0, 0), (1, 1), (2, 1), (3, 2), (10, 9), (19, 18), (20, 18), (100, 90), (1000, 900)]
    for steps, left in cases:
        assert len(steady([1.0] * steps)) == left


def test_what_is_no_time_was_not_measured() -> None:
    assert steady([9.0, math.nan, -1.0, 0.0, math.inf, "NaN", None, True, 5]) == [5.0]
    assert steady([math.nan, 5.0, 5.0]) == [5.0, 5.0]  # the first step was slow, whatever it was measured as
    assert steady([math.nan, -1.0]) == []
    assert summarize_steps([]) is None


@given(st.lists(TIMES, min_size=1, max_size=5))
def test_percentiles_are_those_of_numpy(trials: list[list[float]]) -> None:
    found = [each for each in map(steady_steps, trials) if each is not None]
    summary = summarize_steps(found)
    pooled = np.concatenate([each[max(1, len(each) // 10) :] if len(each) > 1 else each for each in trials])
    assert summary is not None
    assert summary.steps == len(pooled)
    assert summary.median_ms == pytest.approx(float(np.median(pooled)), rel=1e-12)
    assert summary.mean_ms == pytest.approx(float(np.mean(pooled)), rel=1e-12)
    assert summary.std_ms == pytest.approx(float(np.std(pooled, ddof=1)) if len(pooled) > 1 else 0.0, abs=1e-6)
    assert (summary.min_ms, summary.max_ms) == (pooled.min(), pooled.max())
    assert summary.p90_ms == np.percentile(pooled, 90, method="inverted_cdf")
    assert summary.p99_ms == np.percentile(pooled, 99, method="inverted_cdf")
    assert summary.trial_medians_ms == tuple(each.median_ms for each in found)
