"""What the table needs of a trial: a small extract of its record."""

from __future__ import annotations

import json
import math
import re
import statistics
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

from pytest_aorta.probe.variables import REDACTED
from pytest_aorta.settings import COLLECT, OPTION
from pytest_aorta.triage.signatures import Signature, bounded, on_one_line, signature_of
from pytest_aorta.trials.losses import (
    did_not_run,
    is_in_doubt,
    met_full_disk,
    obstacle_of,
    shared_event,
    was_interrupted,
)

#: Part of a trial's steps that counts as warm-up, at least one step: allocators, caches and compilers settle there.
WARM_UP = 0.1

#: Seconds of a command that are mostly its interpreter's start.
_SHORTEST_RUN = 0.1

#: Read by the engine of a container, outside of it.
_OF_ENGINES = re.compile(r"(NVIDIA|AMD)_(VISIBLE_DEVICES|DRIVER_CAPABILITIES|REQUIRE_\w+)")

#: Say which devices a process has; the first that is set counts. Those of SLURM are numbers of the host.
_DEVICES = (
    *("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
)

#: Failures of which a process died: its step times are those of a part of its work.
_CRASHES = ("exception", "signal", "exit_code", "timeout", "stall", "rank")

#: ``failed`` and ``timeout`` are failures of the workload; ``infrastructure`` and ``did not run`` say nothing about it:
#: they are losses, and so are ``interrupted``, and ``in doubt``: by a signal that may have been the end of its job.
Outcome = Literal["ok", "failed", "timeout", "infrastructure", "interrupted", "in doubt", "did not run"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
FAILURES: tuple[Outcome, ...] = ("failed", "timeout")
COUNTED: tuple[Outcome, ...] = ("ok", "failed", "timeout")
LOSSES: tuple[Outcome, ...] = ("infrastructure", "interrupted", "in doubt", "did not run")


@dataclass(frozen=True)
class TrialSteps:
    """The steps of one trial after its warm-up, in ms, ascending."""

    sorted_ms: array[float]

    @cached_property
    def median_ms(self) -> float:
        return statistics.median(self.sorted_ms)


@dataclass(frozen=True)
class StepSummary:
    """The steps of all trials of a cell together, in ms.

    A percentile is the smallest step time that at least 90 % (99 %) of the steps do not exceed (nearest rank: numpy's
    ``inverted_cdf``), so that it is always one that was measured. ``trial_medians_ms``: the steps of one trial are not
    independent of each other, its trials are.
    """

    mean_ms: float
    std_ms: float
    min_ms: float
    median_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    steps: int
    trial_medians_ms: tuple[float, ...]


def steady_steps(step_times_ms: Iterable[Any]) -> TrialSteps | None:
    """The steps of a trial after its warm-up, which is the first tenth, rounded down, and at least the first step.

    The only step of a trial counts. A time that is not a finite number above 0 was not measured, and is left out;
    ``None`` where no time is left.
    """
    times = list(step_times_ms)
    if len(times) > 1:
        times = times[max(1, int(len(times) * WARM_UP)) :]
    numbers = (time for time in times if isinstance(time, int | float) and not isinstance(time, bool))
    measured = sorted(float(time) for time in numbers if 0 < time < math.inf)
    return TrialSteps(array("d", measured)) if measured else None


def summarize_steps(trials: Sequence[TrialSteps]) -> StepSummary | None:
    """The steps of several trials; ``None`` where there are none."""
    if not trials:
        return None
    pooled = sorted(chain.from_iterable(trial.sorted_ms for trial in trials))
    mean = statistics.fmean(pooled)
    squares = math.fsum((time - mean) ** 2 for time in pooled)
    return StepSummary(
        mean_ms=mean,
        std_ms=math.sqrt(squares / max(1, len(pooled) - 1)),
        min_ms=pooled[0],
        max_ms=pooled[-1],
        median_ms=statistics.median(pooled),
        p90_ms=pooled[-(-90 * len(pooled) // 100) - 1],
        p99_ms=pooled[-(-99 * len(pooled) // 100) - 1],
        steps=len(pooled),
        trial_medians_ms=tuple(trial.median_ms for trial in trials),
    )


Overlay = tuple[tuple[str, str], ...]
Values = tuple[tuple[str, str | None], ...]
"""Variables in alphabetical order, with their values; ``None`` for one that is not set."""


@dataclass(frozen=True)
class WatchedVariables:
    """Variables that any cell of the plan sets: of one trial, or of all trials of a cell, as far as they agree.

    Attributes:
        watched: their names.
        overlay: those that were set for the trial, by environment, mitigation set and extra variables; and options of
            the workload, as ``config.NAME``.
        ambient: what the watched ones would be without; empty for a trial in a container, which starts from others.
            Secrets are missing.
        resolved: what the trial's own process had. Secrets are missing.
        unnamed: those that nothing names which the process had loaded and imported at the end of ``run()``; ``None``
            where that is not known, or another program may have read them.
    """

    watched: tuple[str, ...] = ()
    overlay: Overlay = ()
    ambient: Values = ()
    resolved: Values = ()
    unnamed: frozenset[str] | None = None


#: Of a trial in whose plan no cell sets any.
NOT_WATCHED = WatchedVariables()


def watched_variables(record: Mapping[str, Any]) -> WatchedVariables:
    request, env = record.get("request") or {}, record.get("env") or {}
    ambient = request.get("ambient") or {}
    if not ambient:
        return NOT_WATCHED
    environment = request.get("environment") or {}
    entered = environment.get("enter") or False
    found = (env.get("end") or {}).get("variables") or {}
    unnamed = None
    if (
        not environment.get("launcher")
        and found.get("by") is not None
        and not found.get("unsearched")
        and not found.get("subprocesses", True)
    ):
        unnamed = frozenset(
            name
            for name, named in found["by"].items()
            if not named["count"] and not (entered and _OF_ENGINES.fullmatch(name))
        )
    failed = any(str(reason).startswith("env_vars:") for reason in env.get("partial_reasons") or ())
    saw_variables = bool(env.get("process")) and isinstance(env.get("env_vars"), Mapping) and not failed
    options = (request.get("config") or {}).items()
    overlay = {
        **(request.get("overlay") or {}),
        **{f"{OPTION}{name}": json.dumps(value, sort_keys=True) for name, value in options},
        COLLECT: "+".join(request.get("collect") or ()),
    }
    resolved = {name: env["env_vars"].get(name) for name in ambient} if saw_variables else {}
    # A redacted value equals no other one, as far as one can see.
    before, after = (
        tuple(sorted((name, value) for name, value in values.items() if value != REDACTED))
        for values in (ambient, resolved)
    )
    overlaid = tuple(sorted(overlay.items()))
    return WatchedVariables(tuple(sorted(ambient)), overlaid, () if entered else before, after, unnamed)


def agreed(trials: Iterable[WatchedVariables]) -> WatchedVariables:
    """What all trials say that say anything: those that crashed, for instance, do not say what nothing names."""
    different = set(trials)

    def common(found: Iterable[Values]) -> Values:
        saying = [set(values) for values in found if values]
        return tuple(sorted(set.intersection(*saying), key=lambda item: item[0])) if saying else ()

    unnamed = [each.unnamed for each in different if each.unnamed is not None]
    overlays = {each.overlay for each in different if each.watched}
    return WatchedVariables(
        watched=tuple(sorted({name for each in different for name in each.watched})),
        overlay=overlays.pop() if len(overlays) == 1 else (),
        ambient=common(each.ambient for each in different),
        resolved=common(each.resolved for each in different),
        unnamed=frozenset.intersection(*unnamed) if unnamed else None,
    )


@dataclass(frozen=True, order=True)
class CellKey:
    """Which cell a trial belongs to.

    ``cell`` is environment and mitigation set, as in item names: ``local-tf32_off+xnack``. Of a trial that a test has
    run: ``test`` is its node id, ``options`` what it gave, for the table, ``digest`` of all else that it has chosen.
    """

    workload: str
    cell: str
    test: str = ""
    options: str = ""
    digest: str = ""

    def group(self) -> tuple[str, str, str, str]:
        """Equal for cells that are compared with each other."""
        return self.workload, self.test, self.options, self.digest

    @property
    def label(self) -> str:
        """Test, workload, cell and options, as far as it has them."""
        return " ".join(filter(None, (self.test, self.workload, self.cell, self.options)))


@dataclass(frozen=True)
class Place:
    """Where a trial ran; ``None`` and empty for not known, or not bound to any.

    ``devices`` are those that the run gave to the trial, else the scheduler or the user to the run, as the host numbers
    them; not those that a cell asks for by its own variables. ``job`` is the scheduler's.
    """

    host: str | None = None
    devices: tuple[int, ...] = ()
    slot: int | None = None
    job: str | None = None

    @property
    def key(self) -> tuple[str | None, tuple[int, ...]]:
        """Trials with equal ones ran on the same hardware."""
        return self.host, self.devices


@dataclass(frozen=True)
class TrialFacts:
    """One trial.

    Attributes:
        file: of the record, relative to the results directory.
        failed_rank: the rank that is the cause of it; ``None`` where there are no ranks, or that is not known.
        run_seed: that of ``--aorta-seed``, with which trials of one index have the same seeds in all cells.
        start: the process from which it was forked, by its index in the cell: those of one share what it drew at its
            start. ``None`` for a trial that was a process of its own.
        in_one_process: whether all trials of all cells share one process, so that starts make no difference between
            cells.
        hash_seed: ``PYTHONHASHSEED`` of its interpreter, of the first rank where it has ranks; ``None`` where nobody
            knows it.
        culprit: the rank that has failed, if all others have only because of it, and how many ranks there are.
        slowest: the rank that computes longest between collectives, how many times as long as the median of all ranks,
            and how many ranks there are; ``None`` where that is not known.
        steps: after the warm-up; ``None`` for a crashed trial, and where nothing was measured per step.
        run_sec: duration of ``run()`` of a command that says no steps and has passed; ``None`` for any other, and where
            it is too short to say more than how fast interpreters start.
        operators: own time of each, in ms per step, where the collector ``profile`` has measured it.
        collected: what collectors have found, and ``not_collected`` the first of what has kept each from it, each as
            ``numerics: ...``.
        observed: whether it ran with collectors.
        event: what has kept this trial from being counted, equal for all trials that it has; ``None`` for a trial that
            is counted, or was lost alone.
        obstacle: what a command lacked before its first step, in words that are equal for all trials that lacked it.
        detected: names of the faults that the output of a command says.
        matched: of each expression for the metrics of a command, whether a line matches.
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
    warnings: tuple[str, ...] = ()
    exit_status: str = ""
    iterations: int | None = None
    variables: WatchedVariables = NOT_WATCHED
    failed_rank: int | None = None
    place: Place = Place()
    run_seed: int | None = None
    start: int | None = None
    in_one_process: bool = False
    hash_seed: int | None = None
    culprit: tuple[int, int] | None = None
    slowest: tuple[int, float, int] | None = None
    event: str | None = None
    obstacle: str | None = None
    detected: tuple[str, ...] = ()
    matched: tuple[tuple[str, bool], ...] = ()
    run_sec: float | None = None
    operators: Mapping[str, float] = field(default_factory=dict, hash=False)
    collected: tuple[str, ...] = ()
    not_collected: tuple[str, ...] = ()
    observed: bool = False

    @property
    def is_failure(self) -> bool:
        return self.outcome in FAILURES

    @property
    def is_counted(self) -> bool:
        return self.outcome in COUNTED


def facts_of(record: Mapping[str, Any], file: str, rules: Sequence[tuple[str, str]] = ()) -> TrialFacts:
    """The facts of a record (``TrialResult.to_dict()``, or what a trial file holds).

    All of them are in the record itself, so that a run and the reader of its files come to the same table.
    """
    outcome = classify_outcome(record)
    result, failure, request = record["result"], record.get("failure") or {}, record.get("request") or {}
    output, step_times = result.get("output") or {}, result.get("step_times_ms") or ()
    collected: Mapping[str, Mapping[str, Any]] = record.get("collected") or {}
    index = record.get("trial_index")
    if not isinstance(index, int):
        number = re.search(r"(\d+)$", PurePosixPath(file).stem)
        index = int(number[1]) if number else 0
    has_all_steps = outcome == "ok" or (outcome == "failed" and failure.get("kind") not in _CRASHES)
    matched: tuple[tuple[str, bool], ...] = ()
    if output.get("matched"):
        matched = tuple((name, lines > 0) for name, lines in output["matched"].items() if name.startswith("metric"))
    seconds = (record.get("phases_sec") or {}).get("run")
    is_timed = outcome == "ok" and output and not step_times

    beside = record.get("side_by_side") or {}
    variables = (record.get("env") or {}).get("env_vars") or {}
    devices = (record.get("imposed") or {}).get("devices")
    if devices is None:
        devices = ()
        for name in _DEVICES:
            if name in variables and name not in (request.get("overlay") or {}):
                if re.fullmatch(r"\d+(,\d+)*", variables[name]):
                    devices = [int(device) for device in variables[name].split(",")]
                break

    culprit, rank, ranks = None, failure.get("rank"), record.get("ranks") or ()
    if rank is not None and len(ranks) > 1:
        failed = [each for each in ranks if each.get("failure") and not each.get("collateral")]
        if all(each["rank"] == rank and each.get("blame") != "unknown" for each in failed):
            culprit = (rank, len(ranks))
    seeds = (each.get("seeds") or {} for each in (record, *sorted(ranks, key=lambda each: int(each["rank"]))))
    # In a plan, the name of the cell says all; trials of a test may differ in all that a test can choose.
    cell = record.get("cell") or f"{record['execution_env']['name']}-{'+'.join(record['mitigations_applied'])}"
    test = record.get("test") or {}
    options, digest = test.get("options") or "", test.get("digest") or ""
    # A total of 0 is the default of workloads that do not count their iterations.
    executed = result.get("executed_iterations")
    return TrialFacts(
        key=CellKey(record["workload"], cell, test.get("node_id", ""), options, digest),
        environment=record["execution_env"]["name"],
        mitigations=tuple(record["mitigations_applied"]),
        trial_id=record["trial_id"],
        index=index,
        file=file,
        outcome=outcome,
        signature=signature_of(record, rules),
        first_failure_iteration=result.get("first_failure_iteration"),
        steps=steady_steps(step_times) if step_times and has_all_steps else None,
        started_at=record.get("started_at") or "",
        wall_sec=record.get("wall_clock_sec"),
        warnings=tuple(record.get("warnings") or ()),
        exit_status=record["exit_status"],
        iterations=executed if executed is not None else result.get("total_iterations") or None,
        variables=watched_variables(record),
        failed_rank=rank,
        place=Place(
            host=record.get("host"),
            devices=tuple(devices),
            slot=beside.get("slot"),
            job=beside.get("job") or variables.get("SLURM_JOB_ID"),
        ),
        run_seed=request.get("run_seed"),
        start=record.get("zygote"),
        in_one_process=request.get("isolation") == "none",
        hash_seed=next((each["hash"] for each in seeds if each.get("hash") is not None), None),
        culprit=culprit,
        slowest=_slowest(ranks),
        event=None if outcome in COUNTED else shared_event(record),
        obstacle=obstacle_of(record),
        detected=tuple(output.get("detected") or ()),
        matched=matched,
        run_sec=seconds if is_timed and isinstance(seconds, float) and seconds >= _SHORTEST_RUN else None,
        operators=(collected.get("profile") or {}).get("data", {}).get("operators") or {},
        collected=tuple(f"{name}: {each['sentence']}" for name, each in collected.items() if each.get("sentence")),
        not_collected=tuple(f"{name}: {each['problems'][0]}" for name, each in collected.items() if each["problems"]),
        observed=bool(request.get("collect")),
    )


def judged_together(trials: Sequence[TrialFacts]) -> Sequence[TrialFacts]:
    """The trials of one cell: where all have ended for want of the same thing, before they began, none of them ran."""
    reasons = {each.obstacle for each in trials if each.is_counted}
    if len(reasons) != 1 or None in reasons:
        return trials
    why = Signature("exception", "run", message=bounded(on_one_line(reasons.pop() or "")))
    return [replace(each, outcome="did not run", signature=why) if each.is_counted else each for each in trials]


def classify_outcome(record: Mapping[str, Any]) -> Outcome:
    """For statistics: as the exit status, but that what never began its main work is no failure of the workload.

    Neither is what a full disk has ended.
    """
    status = record["exit_status"]
    if status == "infrastructure_failed" and was_interrupted(record):
        return "interrupted"
    if is_in_doubt(record):
        return "in doubt"
    if did_not_run(record):
        return "did not run"
    if status == "infrastructure_failed" or met_full_disk(record):
        return "infrastructure"
    return "ok" if status == "ok" else "timeout" if status == "timeout" else "failed"


def _slowest(ranks: Sequence[Mapping[str, Any]]) -> tuple[int, float, int] | None:
    busy = {each["rank"]: each["busy_ms"] for each in ranks if each.get("busy_ms")}
    if len(busy) < max(2, len(ranks)):
        return None
    rank = max(busy, key=lambda each: (busy[each], -each))
    return rank, busy[rank] / statistics.median(busy.values()), len(busy)
