"""Numbers of one cell, and whether the variables of its mitigation set can have had an effect."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Literal

from pytest_aorta.probe.variables import REDACTED
from pytest_aorta.settings import BESIDE, COLLECT, OPTION, PREFIX
from pytest_aorta.triage.draws import Start, group_by_start
from pytest_aorta.triage.facts import (
    LOSSES,
    OF_LIBRARIES,
    OUTCOMES,
    CellKey,
    Outcome,
    StepSummary,
    TrialFacts,
    WatchedVariables,
    agreed,
    judged_together,
    summarize_steps,
)
from pytest_aorta.triage.rates import Interval, wilson
from pytest_aorta.triage.signatures import Signature


@dataclass(frozen=True)
class SignatureCount:
    """One way in which a cell has failed, with the trials and the ranks that it has hit."""

    signature: Signature
    trials: tuple[int, ...]
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class CellStatistics:
    """Numbers of a cell's finished trials, which are in the order of their indices."""

    key: CellKey
    environment: str
    mitigations: tuple[str, ...]
    finished: tuple[TrialFacts, ...]

    @cached_property
    def trials(self) -> dict[Outcome, tuple[int, ...]]:
        """Indices of the trials by outcome."""
        return {name: tuple(each.index for each in self.finished if each.outcome == name) for name in OUTCOMES}

    def count(self, *outcomes: Outcome) -> int:
        return sum(len(self.trials[outcome]) for outcome in outcomes)

    @property
    def total(self) -> int:
        return len(self.finished)

    @cached_property
    def failures(self) -> int:
        """Trials in which the workload failed or hung."""
        return self.count("failed", "timeout")

    @cached_property
    def counted(self) -> int:
        """Trials that say something about the workload."""
        return self.count("ok", "failed", "timeout")

    @property
    def lost(self) -> int:
        """Trials that say nothing about the workload."""
        return self.count(*LOSSES)

    @property
    def loss_events(self) -> int:
        """Number of events that cost trials; trials lost by one event count once."""
        events = self.tally("event")
        return self.lost - sum(events.values()) + len(events)

    @property
    def did_not_run(self) -> bool:
        """Whether no trial reached its main work; interrupted trials are ignored."""
        return self.count("did not run") > 0 and self.count("did not run", "interrupted", "in doubt") == self.total

    @property
    def rate(self) -> float | None:
        return self.failures / self.counted if self.counted else None

    @property
    def rate_interval(self) -> Interval:
        """Wilson, 95 %."""
        return wilson(self.failures, self.counted)

    @cached_property
    def signatures(self) -> tuple[SignatureCount, ...]:
        """Ways to fail, the most frequent first."""
        return _signature_counts(each for each in self.finished if each.is_failure)

    @cached_property
    def signature_numbers(self) -> dict[Signature, int]:
        return {each.signature: len(each.trials) for each in self.signatures}

    @cached_property
    def losses(self) -> tuple[SignatureCount, ...]:
        """Why trials say nothing about the workload, the most frequent reason first."""
        return _signature_counts(each for each in self.finished if each.outcome in LOSSES)

    @cached_property
    def steps(self) -> StepSummary | None:
        """Steps of trials that reached the end of ``run()``."""
        return summarize_steps([each.steps for each in self.finished if each.steps is not None])

    @property
    def iterations(self) -> tuple[int, ...]:
        """The different numbers of iterations that trials made, ascending."""
        return tuple(sorted({each.iterations for each in self.finished if each.iterations is not None}))

    @property
    def first_failure_iterations(self) -> tuple[int, ...]:
        numbers = (each.first_failure_iteration for each in self.finished if each.is_failure)
        return tuple(sorted(number for number in numbers if number is not None))

    @property
    def median_wall_sec(self) -> float | None:
        walls = [each.wall_sec for each in self.finished if each.is_counted and each.wall_sec is not None]
        return statistics.median(walls) if walls else None

    @cached_property
    def places(self) -> dict[tuple[str | None, tuple[int, ...]], tuple[int, int]]:
        """Failures and counted trials by host and devices."""
        counts: dict[tuple[str | None, tuple[int, ...]], tuple[int, int]] = {}
        for each in self.finished:
            if each.is_counted:
                failures, trials = counts.get(each.place.key, (0, 0))
                counts[each.place.key] = failures + each.is_failure, trials + 1
        return counts

    @cached_property
    def began(self) -> tuple[str, str]:
        """When its first and its last counted trial began; empty if the time of any trial is unknown."""
        times = [each.started_at for each in self.finished if each.is_counted]
        return (min(times), max(times)) if times and all(times) else ("", "")

    @cached_property
    def starts(self) -> tuple[Start, ...]:
        """The processes that its counted trials were forked from, or were."""
        return group_by_start(self.finished)

    @property
    def shared_starts(self) -> int | None:
        """Number of its processes, if one of them served several trials."""
        if all(facts.start is None for facts in self.finished):
            return None
        return len(self.starts) if any(start.is_shared for start in self.starts) else None

    @cached_property
    def variables(self) -> WatchedVariables:
        """Variables that any cell of the plan sets, as far as its trials agree on them."""
        return agreed(each.variables for each in self.finished)

    def tally(self, name: str) -> dict[str, int]:
        """Count trials by a field of their facts, such as ``warnings``, ``event`` or ``collected``."""
        numbers: Counter[str] = Counter()
        for each in self.finished:
            value = getattr(each, name)
            numbers.update(list(dict.fromkeys(value)) if isinstance(value, tuple) else [value] if value else [])
        return dict(numbers)

    @property
    def observed(self) -> int:
        """Number of trials that ran with collectors."""
        return sum(each.observed for each in self.finished)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(each.file for each in self.finished)


def _signature_counts(failing: Iterable[TrialFacts]) -> tuple[SignatureCount, ...]:
    alike: dict[Signature, list[TrialFacts]] = {}
    for facts in failing:
        if facts.signature is not None:
            alike.setdefault(facts.signature, []).append(facts)
    counts = [
        SignatureCount(
            signature,
            trials=tuple(facts.index for facts in found),
            ranks=tuple(sorted({facts.failed_rank for facts in found if facts.failed_rank is not None})),
        )
        for signature, found in alike.items()
    ]
    return tuple(sorted(counts, key=lambda count: -len(count.trials)))


@dataclass
class CellTrials:
    """The trials of one cell, in the order in which they began.

    ``trials``: by index; trials of a test by file, as a test may run several of one index. ``None`` while one runs.
    """

    key: CellKey
    environment: str
    mitigations: tuple[str, ...]
    trials: dict[int | str, TrialFacts | None] = field(default_factory=dict)
    _statistics: CellStatistics | None = None
    _finished: Sequence[TrialFacts] | None = None

    def add(self, facts: TrialFacts) -> None:
        """Add a finished trial."""
        self.trials[facts.file if facts.key.test else facts.index] = facts
        self._statistics = self._finished = None

    @property
    def finished(self) -> Sequence[TrialFacts]:
        if self._finished is None:
            self._finished = judged_together([facts for facts in self.trials.values() if facts is not None])
        return self._finished

    def stream(self) -> list[TrialFacts]:
        """The counted trials up to the first that is still running: later ones would favour outcomes that end fast."""
        ended = list(takewhile(lambda facts: facts is not None, self.trials.values()))
        is_all = len(ended) == len(self.trials)
        over = self.finished if is_all else judged_together([facts for facts in ended if facts is not None])
        return [facts for facts in over if facts.is_counted]

    @property
    def statistics(self) -> CellStatistics:
        """Numbers of all finished trials."""
        if self._statistics is None:
            finished = sorted(self.finished, key=lambda facts: (facts.index, facts.file))
            self._statistics = CellStatistics(self.key, self.environment, self.mitigations, tuple(finished))
        return self._statistics


Reason = Literal["set to this value already", "named by nothing that is loaded"]


@dataclass(frozen=True)
class InertVariable:
    name: str
    reason: Reason

    @property
    def text(self) -> str:
        """``DISABLE_TF32 is named by nothing that is loaded``."""
        return f"{self.name} is {self.reason}"


@dataclass(frozen=True)
class MitigationEffect:
    """Whether the variables of a cell's mitigation set can have had an effect.

    Attributes:
        inert: variables that probably had none, in alphabetical order; ``active``: the others that the set changes.
        same_as: the cell's baseline, if all watched variables have the same values there.
    """

    mitigations: tuple[str, ...]
    inert: tuple[InertVariable, ...] = ()
    active: tuple[str, ...] = ()
    same_as: CellKey | None = None

    @property
    def is_second_baseline(self) -> bool:
        return self.same_as is not None

    @property
    def is_inert(self) -> bool:
        """Whether none of its variables seems to have an effect."""
        return self.is_second_baseline or (bool(self.inert) and not self.active)

    @property
    def is_unread(self) -> bool:
        """Whether its variables are all of such families that code which read them would have had their names."""
        unnamed = [each.name for each in self.inert if each.reason == "named by nothing that is loaded"]
        return not self.active and len(unnamed) == len(self.inert) > 0 and all(map(OF_LIBRARIES.fullmatch, unnamed))

    @property
    def reason(self) -> str:
        """The reason in ``inert? (reason)``; empty if it is not ``is_inert``."""
        if self.same_as is not None:
            return f"same variables as {self.same_as.cell}"
        return ", or ".join(sorted({variable.reason for variable in self.inert})) if self.is_inert else ""

    @property
    def sentences(self) -> tuple[str, ...]:
        """One per inert variable, and one on an equal baseline: ``tf32_off: DISABLE_TF32 is named by nothing ...``."""
        label = ",".join(self.mitigations)
        said = [f"{label}: {variable.text}" for variable in self.inert]
        if self.same_as is not None:
            said.append(f"{label}: all variables have the values that they have in {self.same_as.cell}")
        return tuple(said)


def effects(
    cells: Mapping[CellKey, CellStatistics], baselines: Mapping[CellKey, CellKey]
) -> dict[CellKey, MitigationEffect]:
    """Judge the variables of each cell that is compared with a baseline.

    A variable belongs to the mitigation set if the cell sets it, and the baseline's set in the same environment does
    not set it to the same value: variables of the environment and extra ones are in both. Only values that all trials
    of a cell agree on count; secret and unseen values are ignored.

    - "set to this value already": the trials of the baseline's set had the same value; if these are unknown, the
      environment of pytest had it.
    - "named by nothing that is loaded": see ``probe.loaded``.
    """
    judged = {}
    for key, base in baselines.items():
        cell = cells[key]
        # The baseline's set in this environment.
        wanted = (key.group(), cell.environment, cells[base].mitigations)
        alike = (each for each in cells.values() if (each.key.group(), each.environment, each.mitigations) == wanted)
        reference = next(alike, None)
        if reference is None or reference is cell:
            judged[key] = MitigationEffect(cell.mitigations)
        else:
            judged[key] = _effect(cell, reference, base if reference.key == base else None)
    return judged


def _effect(cell: CellStatistics, reference: CellStatistics, base: CellKey | None) -> MitigationEffect:
    own, theirs = cell.variables, reference.variables
    overlay, resolved = dict(theirs.overlay), dict(own.resolved)
    without = dict(theirs.resolved or own.ambient)
    reasons: dict[str, Reason | None] = {}
    for name, value in own.overlay:
        if overlay.get(name) != value:
            value = resolved.get(name) or value
            is_unnamed = own.unnamed is not None and name in own.unnamed
            is_same = value != REDACTED and without.get(name) == value
            named: Reason | None = "named by nothing that is loaded" if is_unnamed else None
            reasons[name] = "set to this value already" if is_same else named
    others = COLLECT, PREFIX, BESIDE
    options = [
        {each for each in side.overlay if each[0].startswith(OPTION) or each[0] in others} for side in (own, theirs)
    ]
    is_equal = (own.watched, own.resolved, options[0]) == (theirs.watched, theirs.resolved, options[1])
    return MitigationEffect(
        cell.mitigations,
        inert=tuple(InertVariable(name, reason) for name, reason in reasons.items() if reason is not None),
        active=tuple(name for name, reason in reasons.items() if reason is None),
        same_as=base if is_equal and own.watched and len(own.resolved) == len(own.watched) else None,
    )
