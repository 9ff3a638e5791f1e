"""What the health of devices says of failures and of step times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.records import record
from support.results import write_cell
from support.stage import Stage
from support.triage_facts import triage_of, trials

from pytest_aorta.plugin.failures import short_reason
from pytest_aorta.probe.health.meaning import after, hardware_events, meanings, throttled, xid_name
from pytest_aorta.triage.columns import conclusions
from pytest_aorta.triage.facts import Place, TrialFacts, facts_of
from pytest_aorta.triage.health import changes_of_clocks
from pytest_aorta.trials.result import TrialResult

XID_94 = {"devices": {"GPU 2": {"events": [{"at": 1.0, "kind": "Xid", "code": 94}]}}, "readings": 3}
ECC = {"devices": {"GPU 2": {"counters": {"ecc_uncorrected": 1}}}, "readings": 3}


def test_the_gravest_event_of_a_failed_trial_is_named() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        (XID_94, "after Xid 94 (contained ECC error) on GPU 2"),
        (ECC, "after uncorrectable ECC error on GPU 2"),
        ({"devices": {"GPU 0": {"counters": {"ras umc uncorrected": 2}}}}, "after RAS error (memory) on GPU 0"),
        ({"host": {"counters": {"machine_checks": 1}}}, "after machine check on the host"),
        ({"host": {"events": [{"at": 1.0, "kind": "OOM kill", "text": "Killed process 1"}]}}, ""),
        ({"devices": {"GPU 0": {"counters": {"ecc_corrected": 5}}}}, ""),  # it was corrected
        ({"devices": {"GPU 0": {"events": [{"at": 1.0, "kind": "Xid", "code": 45}]}}}, ""),  # it only follows
        (
            {"devices": {"GPU 0": {"events": [{"at": 1.0, "kind": "Xid", "code": 31}]}}},
            "after Xid 31 (memory page fault) on GPU 0",
        ),
        ({}, ""),
    ]
    for health, said in cases:
        assert after(health) == said


def test_what_the_hardware_reported_is_a_part_of_the_signature() -> None:
    failed = record(
        exit_status="workload_failed",
        result={"passed": False},
        failure={"phase": "run", "kind": "exception", "type": "RuntimeError", "message": "CUDA error"},
    )
    plain, reported = (facts_of({**failed, "health": health}, "trial_0.json") for health in (None, XID_94))
    assert plain.signature is not None
    assert reported.signature is not None
    assert reported.signature.text == f"{plain.signature.text}, after Xid 94 (contained ECC error)"
    assert reported.hardware == (("GPU 2", "an Xid 94 (contained ECC error)"),)


def test_the_line_of_a_failed_trial_says_what_the_hardware_reported() -> None:
    failure = {"phase": "run", "kind": "exception", "type": "RuntimeError", "message": "CUDA error"}
    failed = record(exit_status="workload_failed", result={"passed": False}, failure=failure, health=XID_94)
    said = short_reason(TrialResult.from_dict(failed))
    assert said == "RuntimeError: CUDA error (workload_failed in run, after Xid 94 (contained ECC error) on GPU 2)"


def test_the_table_of_events_has_a_cause_a_name_and_an_action_for_each() -> None:
    for (kind, code), meaning in meanings().items():
        assert kind != "Xid" or code.isdecimal()
        assert meaning.cause in ("hardware", "driver", "application", "follows")
        assert meaning.name
        assert meaning.action
    assert xid_name(4711) == "Xid 4711"
    [event] = hardware_events({"devices": {"GPU 1": {"counters": {"ras umc uncorrected": 1}}}})
    assert event.what == "a RAS error (memory)"
    assert "retired" in event.action


def with_errors(facts: Sequence[TrialFacts], numbers: Sequence[int], device: int = 2) -> list[TrialFacts]:
    return [
        replace(
            each,
            place=Place("node1", (device if number in numbers else number % 4,)),
            hardware=((f"GPU {device}", "an uncorrectable ECC error"),) if number in numbers else (),
        )
        for number, each in enumerate(facts)
    ]


def test_a_device_with_errors_in_its_failing_trials_is_suspected_first() -> None:
    facts = with_errors(trials("none", "." * 37 + "FFF"), (37, 38, 39))
    first = conclusions(triage_of(facts))
    said = "suspect GPU 2: 3 of 3 failures came with an uncorrectable ECC error there, 0 of 37 other trials"
    assert triage_of(facts).associations.bad_place is not None
    assert said in triage_of(facts).associations.significant[0].sentence
    assert not first or first[0].startswith(said)


@pytest.mark.slow
def test_devices_are_named_and_others_are_not_in_simulated_triages() -> None:
    """Two cells of 20 trials on four devices, 300 triages each: errors that end trials, and errors that do not."""
    named = wrong = 0
    for number in range(300):
        draws = np.random.default_rng([49, number])
        for acts in (True, False):
            facts: list[TrialFacts] = []
            for cell in ("none", "fix"):
                errors = draws.random(20) < 0.2
                fails = (errors | (draws.random(20) < 0.05)) if acts else draws.random(20) < 0.25
                of_cell = trials(cell, "".join(".F"[int(each)] for each in fails), timed=True)
                facts += with_errors(of_cell, [*np.flatnonzero(errors)])
            suspected = any(
                each.sentence.startswith("suspect GPU 2") for each in triage_of(facts).associations.significant
            )
            named += acts and suspected
            wrong += not acts and suspected
    assert named >= 0.95 * 300
    assert wrong <= 0.01 * 300


def clocked(mitigations: str, ms: Sequence[float], throttles: Sequence[bool]) -> list[TrialFacts]:
    facts = trials(mitigations, "." * len(ms), step_ms=tuple(ms))
    return [
        replace(each, throttled=frozenset({"power cap"}) if throttle else frozenset(), clock_mhz=1980.0)
        for each, throttle in zip(facts, throttles, strict=True)
    ]


def test_trials_under_a_power_cap_are_not_called_slower() -> None:
    for number in range(20):
        draws = np.random.default_rng([50, number])
        base = clocked("none", draws.normal(100, 1, 20).tolist(), [False] * 20)
        capped = draws.random(20) < 0.7
        cell = clocked("omp_1", (draws.normal(100, 1, 20) + 40 * capped).tolist(), capped.tolist())
        table = triage_of([*base, *cell])
        verdict = table.rows[1].verdict
        assert (verdict.kind, verdict.of) == ("confounded", "with clocks")
        assert f"{capped.sum()} of 20 trials of local-omp_1 ran under a power cap" in verdict.reason
        assert any(verdict.reason in each for each in conclusions(table))


def test_lower_clocks_confound_and_those_of_the_faster_side_do_not() -> None:
    base = clocked("none", [100.0 + i / 10 for i in range(20)], [False] * 20)
    slow = clocked("omp_1", [140.0 + i / 10 for i in range(20)], [False] * 20)
    assert triage_of([*base, *slow]).rows[1].verdict.kind == "slower"
    low = [replace(each, clock_mhz=1410.0) for each in slow]
    assert "were clocked lower (1410 MHz instead of 1980)" in triage_of([*base, *low]).rows[1].verdict.reason
    low_base = [replace(each, clock_mhz=1410.0) for each in base]
    assert triage_of([*low_base, *slow]).rows[1].verdict.kind == "slower"


def test_two_runs_that_differ_in_clocks_say_so() -> None:
    before = clocked("none", [100.0] * 20, [False] * 20)
    after_it = clocked("none", [100.0] * 20, [True] * 15 + [False] * 5)
    assert changes_of_clocks(before, after_it) == ("15 of 20 trials of B ran under a power cap, 0 of 20 of A",)
    assert changes_of_clocks(before, before) == ()


def test_a_short_throttling_is_none() -> None:
    assert throttled({"devices": {"GPU 0": {"throttled": {"power cap": 0.02}}}}) == frozenset()
    assert throttled({"devices": {"GPU 0": {"throttled": {"heat": 0.5}}}}) == {"heat"}


def health(cap: float, ecc: str = "on", heat: float = 60.0) -> dict[str, Any]:
    gauges = {"power_cap_w": [cap, cap], "temperature_c": [40.0, heat], "sm_mhz": [300.0, 1980.0]}
    return {"readings": 3, "devices": {"GPU 0": {"gauges": gauges, "facts": {"ecc": ecc}}}}


def test_report_and_compare_show_devices(stage: Stage, tmp_path: Path) -> None:
    write_cell(tmp_path / "a", "..F", health=health(700))
    write_cell(tmp_path / "b", "..F", health=health(500, "off"))
    said = str(stage.aorta("compare", tmp_path / "a", tmp_path / "b").stdout)
    assert "ECC of GPUs on -> off" in said
    assert "power cap of GPUs 700 W -> 500 W" in said
    stage.aorta("report", tmp_path / "a", "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Temperature: 60 to 60\N{DEGREE SIGN}C" in page
    assert "Clock: 1980 to 1980 MHz" in page
