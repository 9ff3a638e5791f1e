"""The facts of a trial that the table needs, read from its record."""

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

from pytest_aorta.common.texts import one_line
from pytest_aorta.probe.health.meaning import gauge, hardware_events, throttled
from pytest_aorta.probe.variables import REDACTED
from pytest_aorta.settings import BESIDE, COLLECT, OPTION, PREFIX
from pytest_aorta.triage.signatures import Signature, bounded, on_one_line, signature_of
from pytest_aorta.trials.losses import (
    did_not_run,
    is_in_doubt,
    met_full_disk,
    obstacle_of,
    shared_event,
    was_interrupted,
)

#: Share of a trial's steps, at least one step, in which allocators, caches and compilers warm up.
WARM_UP = 0.1

#: Shorter runs of a command, in seconds, mostly measure how fast interpreters start.
_SHORTEST_RUN = 0.1

#: Variables for the engine of a container, which runs outside of it.
_OF_ENGINES = re.compile(r"(NVIDIA|AMD)_(VISIBLE_DEVICES|DRIVER_CAPABILITIES|REQUIRE_\w+)")

#: Variables of interpreters, loaders, allocators and OpenMP, which may put names together: nothing says that they are
#: not read.
_PUT_TOGETHER = re.compile(r"(OMP|GOMP|KMP|LIBOMP|PYTHON|LD|MALLOC|GLIBC|LC|LANG)\w*")

#: Variables of libraries that have each name as a whole: that of MIOpen, and so on.
OF_LIBRARIES = re.compile(
    r"(NCCL|RCCL|HSA|HIP|HIPBLASLT|ROCBLAS|MIOPEN|TENSILE|TORCH|PYTORCH|ROC|GPU|AMD|DEBUG_HIP|DEBUG_CLR)_\w+|DISABLE_TF32"
)

#: Variables that name the devices of a process; the first that is set counts. SLURM numbers them as the host does.
_DEVICES = (
    *("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
)

#: Kinds of failures that end a trial early, so that its step times cover a part of its work only.
_CRASHES = ("exception", "signal", "exit_code", "timeout", "stall", "rank")

#: ``failed`` and ``timeout`` are failures of the workload. All others but ``ok`` are losses: they say nothing about the
#: workload. ``in doubt``: ended by a signal that may have been the end of its job.
Outcome = Literal["ok", "failed", "timeout", "infrastructure", "interrupted", "in doubt", "did not run"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
FAILURES: tuple[Outcome, ...] = ("failed", "timeout")
COUNTED: tuple[Outcome, ...] = ("ok", "failed", "timeout")
LOSSES: tuple[Outcome, ...] = ("infrastructure", "interrupted", "in doubt", "did not run")


@dataclass(frozen=True)
class TrialSteps:
    """Step times of one trial after its warm-up, in ms, ascending."""

    sorted_ms: array[float]

    @cached_property
    def median_ms(self) -> float:
        return statistics.median(self.sorted_ms)


@dataclass(frozen=True)
class StepSummary:
    """Step times of all trials of a cell together, in ms.

    A percentile is the smallest step time that at least 90 % (99 %) of the steps do not exceed: nearest rank, numpy's
    ``inverted_cdf``. It is always a measured time. ``trial_medians_ms`` are independent of each other; the steps of one
    trial are not.
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
    """Drop the warm-up of a trial: the first tenth of its steps, rounded down, but at least the first step.

    A trial with one step keeps it. Times that are not finite numbers above 0 are dropped; ``None`` if no time is left.
    """
    times = list(step_times_ms)
    if len(times) > 1:
        times = times[max(1, int(len(times) * WARM_UP)) :]
    numbers = (time for time in times if isinstance(time, int | float) and not isinstance(time, bool))
    measured = sorted(float(time) for time in numbers if 0 < time < math.inf)
    return TrialSteps(array("d", measured)) if measured else None


def summarize_steps(trials: Sequence[TrialSteps]) -> StepSummary | None:
    """Summarize the steps of several trials; ``None`` if there are none."""
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
"""Variables in alphabetical order with their values; ``None`` for an unset one."""


@dataclass(frozen=True)
class WatchedVariables:
    """The variables that any cell of the plan sets, as one trial saw them, or as all trials of a cell agree on them.

    Attributes:
        watched: their names.
        overlay: variables set for the trial by environment, mitigation set and extra variables; and options of the
            workload, as ``config.NAME``.
        ambient: values of the watched variables without the overlay; empty in a container. Secrets are missing.
        resolved: values in the trial's own process. Secrets are missing.
        unnamed: variables that no loaded or imported file names at the end of ``run()``; ``None`` where that is not
            known, or another program may have read them.
    """

    watched: tuple[str, ...] = ()
    overlay: Overlay = ()
    ambient: Values = ()
    resolved: Values = ()
    unnamed: frozenset[str] | None = None


#: For a plan in which no cell sets a variable.
NOT_WATCHED = WatchedVariables()


def watched_variables(record: Mapping[str, Any]) -> WatchedVariables:
    request, env = record.get("request") or {}, record.get("env") or {}
    ambient = request.get("ambient") or {}
    if not ambient:
        return NOT_WATCHED
    environment = request.get("environment") or {}
    entered = environment.get("enter") or False
    names = (env.get("end") or {}).get("variables") or {}
    unnamed = None
    if (
        not environment.get("launcher")
        and names.get("by") is not None
        and not names.get("unsearched")
        and not names.get("subprocesses", True)
    ):
        unnamed = frozenset(
            name
            for name, named in names["by"].items()
            if not (named["count"] or _PUT_TOGETHER.fullmatch(name) or (entered and _OF_ENGINES.fullmatch(name)))
        )
    failed = any(str(reason).startswith("env_vars:") for reason in env.get("partial_reasons") or ())
    saw_variables = bool(env.get("process")) and isinstance(env.get("env_vars"), Mapping) and not failed
    options = (request.get("config") or {}).items()
    overlay = {
        **(request.get("overlay") or {}),
        **{f"{OPTION}{name}": json.dumps(value, sort_keys=True) for name, value in options},
        COLLECT: "+".join(request.get("collect") or ()),
        PREFIX: " ".join(environment.get("launcher") or ()),
        BESIDE: " ".join(environment.get("beside") or ()),
    }
    resolved = {name: env["env_vars"].get(name) for name in ambient} if saw_variables else {}
    # Redacted values cannot be compared.
    before, after = (
        tuple(sorted((name, value) for name, value in values.items() if value != REDACTED))
        for values in (ambient, resolved)
    )
    overlaid = tuple(sorted(overlay.items()))
    return WatchedVariables(tuple(sorted(ambient)), overlaid, () if entered else before, after, unnamed)


def agreed(trials: Iterable[WatchedVariables]) -> WatchedVariables:
    """Keep what all trials agree on; trials that say nothing, such as crashed ones, are ignored."""
    different = set(trials)

    def common(sides: Iterable[Values]) -> Values:
        saying = [set(values) for values in sides if values]
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
    """Identity of a cell.

    ``cell`` is environment and mitigation set, as in item names: ``local-tf32_off+xnack``. A trial started by a test
    also has ``test`` (its node id), ``options`` (shown in the table) and ``digest`` (hash of its other choices).
    """

    workload: str
    cell: str
    test: str = ""
    options: str = ""
    digest: str = ""

    def group(self) -> tuple[str, str, str, str]:
        """Cells with equal groups are compared with each other."""
        return self.workload, self.test, self.options, self.digest

    @property
    def label(self) -> str:
        """Test, workload, cell and options; empty parts are left out."""
        return " ".join(filter(None, (self.test, self.workload, self.cell, self.options)))


@dataclass(frozen=True)
class Place:
    """Where a trial ran; ``None`` or empty if unknown or not bound.

    ``devices`` as the host numbers them: given to the trial by the run, else to the run by the scheduler or the user.
    Devices that a cell selects by its own variables do not count. ``job``: the scheduler's job.
    """

    host: str | None = None
    devices: tuple[int, ...] = ()
    slot: int | None = None
    job: str | None = None

    @property
    def key(self) -> tuple[str | None, tuple[int, ...]]:
        """Trials with equal keys ran on the same hardware."""
        return self.host, self.devices


@dataclass(frozen=True)
class TrialFacts:
    """One trial.

    Attributes:
        file: the record's path, relative to the results directory.
        failed_rank: the rank that caused the failure; ``None`` without ranks, or if unknown.
        run_seed: ``--aorta-seed``, which gives trials of one index the same seeds in all cells.
        start: index of the process in its cell that the trial was forked from; trials of one start share everything
            that the process drew at its start. ``None`` for a trial that was a process of its own.
        in_one_process: all trials of all cells share one process, so starts make no difference between cells.
        hash_seed: ``PYTHONHASHSEED`` of its interpreter (the first rank's); ``None`` if unknown.
        culprit: a rank and the number of ranks, if all other ranks failed only because of this one.
        slowest: the rank that computes longest between collectives, its time relative to the median of all ranks, and
            the number of ranks; ``None`` if unknown.
        steps: after the warm-up; ``None`` for a crashed trial or one without step times.
        run_sec: duration of ``run()`` of a passed command without step times; ``None`` otherwise, and if too short.
        operators: own time of each operator in ms per step, measured by the collector ``profile``.
        collected, not_collected: findings of collectors, and the first problem of each: ``numerics: ...``.
        observed: it ran with collectors.
        hardware: errors that the hardware has not corrected: place and name, ``("GPU 2", "an Xid 94 (...)")``.
        throttled: why the clocks of its devices, or of its host, were held back; ``None`` if that was not read.
        clock_mhz: the greatest clock of its devices, or of the host's CPU; ``None`` if unknown.
        temperature_c: the greatest temperature of its devices; ``None`` if unknown.
        event: the cause that kept this trial from being counted, equal for all trials that the cause has hit; ``None``
            for a counted trial or one lost alone.
        obstacle: what a command lacked before its first step, in words that are equal for all trials that lacked it.
        detected: names of the faults that a command's output reports.
        matched: each expression for a command's metrics, and whether a line of output matches it.
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
    hardware: tuple[tuple[str, str], ...] = ()
    throttled: frozenset[str] | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None

    @property
    def is_failure(self) -> bool:
        return self.outcome in FAILURES

    @property
    def is_counted(self) -> bool:
        return self.outcome in COUNTED


def warnings_in(record: Mapping[str, Any]) -> list[str]:
    """Those of the record, and what went wrong after the trial was ok, in its cleanup or at its exit."""
    failure, warnings = record.get("failure") or {}, [*(record.get("warnings") or ())]
    if record["exit_status"] != "ok" or not failure:
        return warnings
    what = ": ".join(filter(None, (failure.get("type"), one_line(failure.get("message") or ""))))
    return [*warnings, f"{failure.get('phase')} failed after the trial was ok: {what}"]


def facts_of(record: Mapping[str, Any], file: str, rules: Sequence[tuple[str, str]] = ()) -> TrialFacts:
    """Read the facts from a record (``TrialResult.to_dict()``, or the content of a trial file).

    They depend on the record alone, so a run and a later reader of its files come to the same table.
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
    health: Mapping[str, Any] = record.get("health") or {}
    clock, heat = gauge(health, "sm_mhz") or gauge(health, "cpu_most_mhz"), gauge(health, "temperature_c")
    # In a plan, the cell's name is enough; a test may choose more than its name says.
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
        warnings=tuple(warnings_in(record)),
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
        hardware=tuple((each.place, each.what) for each in hardware_events(health) if each.cause == "hardware"),
        throttled=throttled(health) if health.get("readings") else None,
        clock_mhz=clock and clock[1],
        temperature_c=heat and heat[1],
    )


def judged_together(trials: Sequence[TrialFacts]) -> Sequence[TrialFacts]:
    """Mark the trials of a cell as ``did not run`` if all of them lacked the same thing before they began."""
    reasons = {each.obstacle for each in trials if each.is_counted}
    if len(reasons) != 1 or None in reasons:
        return trials
    why = Signature("exception", "run", message=bounded(on_one_line(reasons.pop() or "")))
    return [replace(each, outcome="did not run", signature=why) if each.is_counted else each for each in trials]


def classify_outcome(record: Mapping[str, Any]) -> Outcome:
    """Classify a trial by its exit status; ends before the main work, or by a full disk, are no failures."""
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
