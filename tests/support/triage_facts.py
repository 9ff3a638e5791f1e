"""Facts of trials that were never run, for tests of what is concluded from them."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.facts import NOT_WATCHED, CellKey, Outcome, TrialFacts, WatchedVariables, steady_steps
from pytest_aorta.triage.signatures import Signature
from pytest_aorta.triage.verdicts import Table, Triage

_OUTCOMES: dict[str, Outcome] = {".": "ok", "F": "failed", "T": "timeout", "E": "infrastructure", "-": "did not run"}

NAN = Signature("result", "run", message="loss is nan")
CRASH = Signature("signal", "run", type="SIGSEGV")


def triage_of(facts: Iterable[TrialFacts], settings: TriageSettings | None = None) -> Table:
    triage = Triage(settings)
    for each in facts:
        triage.add(each)
    return triage.table()


def trials(
    mitigations: str,
    outcomes: str,
    *,
    environment: str = "local",
    workload: str = "gemm",
    step_ms: tuple[float, ...] = (),
    signatures: dict[str, Signature] | None = None,
    variables: WatchedVariables = NOT_WATCHED,
    timed: bool = False,
) -> list[TrialFacts]:
    """One trial per letter: ``.`` ok, ``F`` failed, ``T`` timeout, ``E`` infrastructure, ``-`` did not run.

    Other letters fail with the signature that ``signatures`` has for them. ``step_ms``: of each trial, by turns.
    ``variables``: of each trial. ``timed``: whether they began one after the other; else nothing is said of order.
    """
    ways = {"F": NAN, "T": Signature("timeout", "run"), **(signatures or {})}
    key = CellKey(workload, f"{environment}-{mitigations.replace(',', '+')}")
    return [
        TrialFacts(
            key=key,
            environment=environment,
            mitigations=tuple(mitigations.split(",")),
            trial_id=f"{workload}_{environment}_{mitigations}_t{index}",
            index=index,
            file=f"{workload}/{key.cell}/trial_{index}.json",
            outcome=_OUTCOMES.get(letter, "failed"),
            signature=ways.get(letter),
            steps=steady_steps([step_ms[index % len(step_ms)]] * 2) if step_ms else None,
            started_at=f"2026-01-01T00:{index // 60:02}:{index % 60:02}.000+00:00" if timed else "",
            wall_sec=1.0,
            variables=variables,
        )
        for index, letter in enumerate(outcomes)
    ]
