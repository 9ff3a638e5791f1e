"""The statistics of one cell."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pytest_aorta.triage.facts import (
    LOSSES,
    NOT_WATCHED,
    OUTCOMES,
    CellKey,
    Outcome,
    StepSummary,
    TrialFacts,
    WatchedVariables,
    agreed,
    summary_of,
)
from pytest_aorta.triage.rates import Interval, wilson
from pytest_aorta.triage.signatures import Signature


@dataclass(frozen=True)
class SignatureCount:
    """How often a cell has failed in one way: in which trials, and in which ranks, as far as they have any."""

    signature: Signature
    trials: tuple[int, ...]
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class CellStatistics:
    """What is known of a cell.

    Attributes:
        trials: indices of the trials by outcome, ascending.
        rate: failures / counted trials; ``None`` where no trial counts.
        rate_interval: Wilson, 95 %.
        signatures: of the failures, the most frequent first.
        steps: of trials that came to the end of ``run()``; ``None`` where there are none.
        iterations: that trials have made, each number once, ascending.
        first_failure_iterations: of the failing trials that say so, ascending.
        median_wall_sec: of the counted trials.
        warnings, exit_statuses, detected, collected, not_collected: how many trials have each.
        observed: how many trials ran with collectors.
        losses: why trials say nothing about the workload, the most frequent reason first.
        files: of the trials, relative to the results directory, in the order of their indices.
        variables: that any cell of the plan sets, as far as the trials agree on them.
        places: failures and counted trials, by host and devices.
        events: what has cost several cells or trials their outcome, and how many trials of this cell each has cost.
    """

    key: CellKey
    environment: str
    mitigations: tuple[str, ...]
    trials: dict[Outcome, tuple[int, ...]]
    rate: float | None
    rate_interval: Interval
    signatures: tuple[SignatureCount, ...] = ()
    steps: StepSummary | None = None
    first_failure_iterations: tuple[int, ...] = ()
    median_wall_sec: float | None = None
    warnings: dict[str, int] = field(default_factory=dict)
    collected: dict[str, int] = field(default_factory=dict)
    not_collected: dict[str, int] = field(default_factory=dict)
    iterations: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    exit_statuses: dict[str, int] = field(default_factory=dict)
    variables: WatchedVariables = NOT_WATCHED
    places: dict[tuple[str | None, tuple[int, ...]], tuple[int, int]] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    detected: dict[str, int] = field(default_factory=dict)
    losses: tuple[SignatureCount, ...] = ()
    observed: int = 0

    def count(self, *outcomes: Outcome) -> int:
        """How many trials have one of these outcomes."""
        return sum(len(self.trials[outcome]) for outcome in outcomes)

    @property
    def total(self) -> int:
        return self.count(*OUTCOMES)

    @property
    def failures(self) -> int:
        """Trials in which the workload has failed, hangs among them."""
        return self.count("failed", "timeout")

    @property
    def counted(self) -> int:
        """Trials that say something about the workload."""
        return self.count("ok", "failed", "timeout")

    @property
    def lost(self) -> int:
        """Trials that say nothing about the workload."""
        return self.count(*LOSSES)

    @property
    def loss_events(self) -> int:
        """By how many events they were lost: those that one event has cost count as one."""
        return self.lost - sum(self.events.values()) + len(self.events)

    @property
    def did_not_run(self) -> bool:
        """Whether no trial has come to its main work, of those that were not interrupted."""
        return self.count("did not run") > 0 and self.count("did not run", "interrupted") == self.total

    @property
    def signature_numbers(self) -> dict[Signature, int]:
        """How many trials have each signature."""
        return {each.signature: len(each.trials) for each in self.signatures}


class CellTrials:
    """The trials of one cell, in the order in which they began."""

    def __init__(self, key: CellKey, environment: str, mitigations: tuple[str, ...]) -> None:
        self.key = key
        self.environment = environment
        self.mitigations = mitigations
        #: By index; those of a test by file: it may run many of one index.
        self._trials: dict[int | str, TrialFacts | None] = {}
        self._statistics: CellStatistics | None = None

    def begin(self, index: int) -> None:
        """A trial has begun."""
        self._trials.setdefault(index, None)

    def add(self, facts: TrialFacts) -> None:
        """A trial is over."""
        self._trials[facts.file if facts.key.test else facts.index] = facts
        self._statistics = None

    @property
    def has_begun(self) -> bool:
        """Whether any trial has."""
        return bool(self._trials)

    @property
    def finished(self) -> list[TrialFacts]:
        """All that are over."""
        return [facts for facts in self._trials.values() if facts is not None]

    def stream(self) -> list[TrialFacts]:
        """The counted trials up to the first that is still running.

        How long a trial takes depends on how it ends: to look at what is over already would favour fast outcomes.
        """
        found = []
        for facts in self._trials.values():
            if facts is None:
                break
            if facts.is_counted:
                found.append(facts)
        return found

    @property
    def statistics(self) -> CellStatistics:
        """Of all that are over; computed again only after a change."""
        if self._statistics is None:
            self._statistics = self._computed()
        return self._statistics

    def _computed(self) -> CellStatistics:
        trials = sorted(self.finished, key=lambda facts: (facts.index, facts.file))  # in whatever order they have ended
        counted = [facts for facts in trials if facts.is_counted]
        failing = [facts for facts in counted if facts.is_failure]
        first_failures = [facts.first_failure_iteration for facts in failing]
        walls = [facts.wall_sec for facts in counted if facts.wall_sec is not None]
        return CellStatistics(
            key=self.key,
            environment=self.environment,
            mitigations=self.mitigations,
            trials={
                outcome: tuple(facts.index for facts in trials if facts.outcome == outcome) for outcome in OUTCOMES
            },
            rate=len(failing) / len(counted) if counted else None,
            rate_interval=wilson(len(failing), len(counted)),
            signatures=_signature_counts(failing),
            steps=summary_of([facts.steps for facts in trials if facts.steps is not None]),
            first_failure_iterations=tuple(sorted(number for number in first_failures if number is not None)),
            median_wall_sec=statistics.median(walls) if walls else None,
            warnings=dict(Counter(text for facts in trials for text in set(facts.warnings))),
            collected=dict(Counter(text for facts in trials for text in facts.collected)),
            not_collected=dict(Counter(text for facts in trials for text in set(facts.not_collected))),
            iterations=tuple(sorted({facts.iterations for facts in trials if facts.iterations is not None})),
            files=tuple(facts.file for facts in trials),
            exit_statuses=dict(Counter(facts.exit_status for facts in trials)),
            variables=agreed(facts.variables for facts in trials),
            places=_by_place(counted),
            events=dict(Counter(facts.event for facts in trials if facts.event is not None)),
            detected=dict(Counter(name for facts in trials for name in facts.detected)),
            losses=_signature_counts(facts for facts in trials if facts.outcome in LOSSES),
            observed=sum(facts.observed for facts in trials),
        )


def _by_place(counted: Iterable[TrialFacts]) -> dict[tuple[str | None, tuple[int, ...]], tuple[int, int]]:
    found: dict[tuple[str | None, tuple[int, ...]], tuple[int, int]] = {}
    for facts in counted:
        failures, trials = found.get(facts.place.key, (0, 0))
        found[facts.place.key] = failures + facts.is_failure, trials + 1
    return found


def _signature_counts(failing: Iterable[TrialFacts]) -> tuple[SignatureCount, ...]:
    """In how many ways trials have failed: the most frequent first, of equally frequent ones the earlier."""
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
