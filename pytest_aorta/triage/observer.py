"""What collectors change in the trials that they look into: how often these fail, and how long their steps take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_aorta.triage.cells import CellTrials
from pytest_aorta.triage.facts import CellKey, TrialFacts
from pytest_aorta.triage.rates import difference_p, holm
from pytest_aorta.triage.speed import LEVEL, Speed, compare_speeds, measured

#: Failures, and trials that count.
Counts = tuple[int, int]


@dataclass(frozen=True)
class ObserverEffect:
    """Of a cell: its trials with collectors beside those ``alone``, without.

    Attributes:
        p: of "collectors do not change the rate", two-sided, corrected for the number of cells (Holm).
        speed: of the trials with collectors, against those without.
        of_failed: those with collectors are replays of trials that have failed without: that more of them fail than of
            all trials says nothing, and only fewer count.
        replays: how many there are, also those that do not count.
        other_ways: of replays that have failed, how many in another way, by that way.
        collected, not_collected: what collectors have found in replays, and what has kept them from it.
    """

    key: CellKey
    observed: Counts
    alone: Counts
    p: float
    speed: Speed
    of_failed: bool = False
    replays: int = 0
    other_ways: Mapping[str, int] = field(default_factory=dict, hash=False)
    collected: Mapping[str, int] = field(default_factory=dict, hash=False)
    not_collected: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def changes_rate(self) -> bool:
        return self.p < LEVEL

    @property
    def warning(self) -> str:
        """A finding of its own: what collectors show of such trials may not be what makes the others fail."""
        (failed, trials), (alone, alone_trials) = self.observed, self.alone
        those = "replays of failed trials" if self.of_failed else "trials"
        return (
            f"{self.key.workload} {self.key.cell}: collectors change the failure rate: {failed} of {trials} {those} "
            f"failed with them, {alone} of {alone_trials} trials without (p = {self.p:.2g})"
        )

    def lines(self) -> list[str]:
        (failed, trials), (alone, alone_trials) = self.observed, self.alone
        speed = f"; {self.speed.of} {self.speed.change}" if self.speed.change else ""
        shown = "they change the rate" if self.changes_rate else "no change of the rate is shown"
        if not self.of_failed:
            rates = f"with collectors {failed} of {trials} trials failed, without {alone} of {alone_trials}"
            return [f"{rates}: {shown} (p = {self.p:.2g}){speed}"]
        line = f"{trials} failed trial{'s' * (trials != 1)} run again with collectors: {failed} failed again"
        ways = [f"{number} in another way: {text}" for text, number in self.other_ways.items()]
        if failed * alone_trials < alone * trials:
            line += f"; of all trials {alone} of {alone_trials} without: {shown} (p = {self.p:.2g})"
        return [line + speed, *ways]


#: A trial that has failed, and its replay with collectors.
Replayed = tuple[TrialFacts, TrialFacts]


def replay_effects(
    replayed: Mapping[CellKey, Sequence[Replayed]], cells: Iterable[CellTrials], speed_margin: float
) -> list[ObserverEffect]:
    """Of cells whose failed trials were run again, with the same seeds and with collectors.

    Where seeds decide, all replays would fail without collectors, too, and where they do not, as many as of all trials:
    fewer than these are an effect either way.
    """
    found = []
    for trials in cells:
        if trials.key not in replayed:
            continue
        again = [again for _, again in replayed[trials.key]]
        pairs = [pair for pair in replayed[trials.key] if pair[1].is_counted]
        failed = [pair for pair in pairs if pair[1].is_failure]
        others = [again for first, again in failed if again.signature != first.signature]
        alone = trials.statistics.failures, trials.statistics.counted
        observed = len(failed), len(pairs)
        fewer = observed[0] * alone[1] < alone[0] * observed[1]
        sides = (measured(again for _, again in pairs), measured(first for first, _ in pairs))
        (speed,) = compare_speeds([sides], speed_margin, sequential=False, family=1)
        effect = ObserverEffect(
            trials.key,
            observed,
            alone,
            difference_p(*observed, *alone) if fewer else 1.0,
            speed,
            of_failed=True,
            replays=len(again),
            other_ways=Counter(each.outcome if each.signature is None else each.signature.text for each in others),
            collected=Counter(text for each in again for text in each.collected),
            not_collected=Counter(text for each in again for text in set(each.not_collected)),
        )
        found.append(effect)
    return corrected(found)


def corrected(effects: Sequence[ObserverEffect]) -> list[ObserverEffect]:
    """For the number of cells."""
    adjusted = holm([effect.p for effect in effects])
    return [replace(effect, p=p) for effect, p in zip(effects, adjusted, strict=True)]
