"""What the table needs of a trial: a small extract of its record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from pytest_aorta.triage.failures.signatures import Signature, signature_of
from pytest_aorta.triage.step_times import TrialSteps, steady_steps
from pytest_aorta.triage.watched_variables import NOT_WATCHED, WatchedVariables, watched_variables

#: ``failed`` and ``timeout`` are failures of the workload; ``infrastructure`` and ``did not run`` say nothing about it.
Outcome = Literal["ok", "failed", "timeout", "infrastructure", "did not run"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "failed", "timeout", "infrastructure", "did not run")
FAILURES: tuple[Outcome, ...] = ("failed", "timeout")
COUNTED: tuple[Outcome, ...] = ("ok", "failed", "timeout")

#: Phases before ``run()``.
_BEFORE_RUN = ("launch", "import", "setup")

#: Failures of which a process died: its step times are those of a part of its work.
_CRASHES = ("exception", "signal", "exit_code", "timeout", "stall", "rank")


@dataclass(frozen=True, order=True)
class CellKey:
    """Which cell a trial belongs to.

    Attributes:
        workload: its name.
        cell: environment and mitigation set, as in item names: ``local-tf32_off+xnack``.
        test: node id of the test that has run the trial; empty for a trial of a plan.
        options: of the trial, as the test gave them, for the table.
        digest: of all else that the test has chosen for the trial.
    """

    workload: str
    cell: str
    test: str = ""
    options: str = ""
    digest: str = ""

    @property
    def group(self) -> tuple[str, str, str, str]:
        """Equal for cells that are compared with each other."""
        return self.workload, self.test, self.options, self.digest


@dataclass(frozen=True)
class HostConditions:
    """The host when the trial began; ``None`` for not known.

    Attributes:
        name: of the host.
        load: average of one minute, per CPU.
        clock_mhz: of the processor.
        memory_available_bytes: as the kernel estimates it.
        cpu_pressure, memory_pressure: percent of the ten seconds before in which tasks have waited for them.
    """

    name: str | None = None
    load: float | None = None
    clock_mhz: float | None = None
    memory_available_bytes: int | None = None
    cpu_pressure: float | None = None
    memory_pressure: float | None = None


@dataclass(frozen=True)
class TrialFacts:
    """One trial.

    Attributes:
        key: of its cell.
        environment, mitigations: names.
        trial_id: unique in its plan.
        index: 0..N-1.
        file: of the record, relative to the results directory.
        outcome: of the trial, for statistics.
        signature: of the failure; ``None`` for a trial that is ok.
        failed_rank: the rank that is the cause of it; ``None`` where there are no ranks, or that is not known.
        iterations: that it has made; ``None`` where the workload does not say.
        first_failure_iteration: as the workload gave it.
        steps: after the warm-up; ``None`` for a crashed trial, and where nothing was measured per step.
        started_at: ISO 8601 in UTC, which sorts as a text.
        wall_sec: from start to end.
        host: when it began.
        warnings: of the record.
        exit_status: of the record.
        variables: that any cell of the plan sets.
    """

    key: CellKey
    environment: str
    mitigations: tuple[str, ...]
    trial_id: str
    index: int
    file: str
    outcome: Outcome
    signature: Signature | None = None
    first_failure_iteration: int | None = None
    steps: TrialSteps | None = None
    started_at: str = ""
    wall_sec: float | None = None
    host: HostConditions = HostConditions()
    warnings: tuple[str, ...] = ()
    exit_status: str = ""
    iterations: int | None = None
    variables: WatchedVariables = NOT_WATCHED
    failed_rank: int | None = None

    @property
    def is_failure(self) -> bool:
        """Whether the workload has failed."""
        return self.outcome in FAILURES

    @property
    def is_counted(self) -> bool:
        """Whether the trial says something about the workload."""
        return self.outcome in COUNTED


def facts_of(record: Mapping[str, Any], file: str) -> TrialFacts:
    """The facts of a record (``TrialResult.to_dict()``, or what a trial file holds).

    All of them are in the record itself, so that a run and the reader of its files come to the same table.
    """
    outcome = outcome_of(record)
    return TrialFacts(
        key=key_of(record),
        environment=record["execution_env"]["name"],
        mitigations=tuple(record["mitigations_applied"]),
        trial_id=record["trial_id"],
        index=_index(record, file),
        file=file,
        outcome=outcome,
        signature=signature_of(record),
        first_failure_iteration=record["result"].get("first_failure_iteration"),
        steps=steady_steps(record["result"].get("step_times_ms") or ()) if _has_all_steps(record, outcome) else None,
        started_at=record.get("started_at") or "",
        wall_sec=record.get("wall_clock_sec"),
        host=_conditions(record),
        warnings=tuple(record.get("warnings") or ()),
        exit_status=record["exit_status"],
        iterations=_iterations(record["result"]),
        variables=watched_variables(record),
        failed_rank=(record.get("failure") or {}).get("rank"),
    )


def key_of(record: Mapping[str, Any]) -> CellKey:
    """The cell of a record. In a plan, its name says all; trials of a test may differ in all that a test can choose."""
    cell = record.get("cell") or f"{record['execution_env']['name']}-{'+'.join(record['mitigations_applied'])}"
    test = record.get("test")
    if not test:
        return CellKey(record["workload"], cell)
    return CellKey(record["workload"], cell, test["node_id"], test.get("options") or "", test.get("digest") or "")


def outcome_of(record: Mapping[str, Any]) -> Outcome:
    """For statistics: as the exit status, but that what never began its main work is no failure of the workload."""
    status = record["exit_status"]
    if status == "timeout":
        return "timeout"
    phase = (record.get("failure") or {}).get("phase")
    if status != "ok" and (record["result"].get("main_work_started") is False):
        return "did not run"
    if status == "infrastructure_failed":
        return "did not run" if phase in _BEFORE_RUN else "infrastructure"
    return "ok" if status == "ok" else "failed"


def _has_all_steps(record: Mapping[str, Any], outcome: Outcome) -> bool:
    """Whether ``run()`` has come to its end, be it with a failed result."""
    failure = record.get("failure") or {}
    return outcome == "ok" or (outcome == "failed" and failure.get("kind") not in _CRASHES)


def _index(record: Mapping[str, Any], file: str) -> int:
    index = record.get("trial_index")
    if isinstance(index, int):
        return index
    found = re.search(r"(\d+)$", PurePosixPath(file).stem)
    return int(found[1]) if found else 0


def _conditions(record: Mapping[str, Any]) -> HostConditions:
    env = record.get("env") or {}
    process = env.get("process") or {}
    load = process.get("load_average") or [None]
    cpus = (env.get("host") or {}).get("cpu_count") or 1
    pressure = process.get("pressure") or {}
    return HostConditions(
        name=record.get("host"),
        load=None if load[0] is None else load[0] / cpus,
        clock_mhz=process.get("cpu_clock_mhz"),
        memory_available_bytes=process.get("memory_available_bytes"),
        cpu_pressure=pressure.get("cpu"),
        memory_pressure=pressure.get("memory"),
    )


def _iterations(result: Mapping[str, Any]) -> int | None:
    executed = result.get("executed_iterations")
    # A total of 0 is the default of workloads that do not count their iterations.
    return executed if executed is not None else result.get("total_iterations") or None
