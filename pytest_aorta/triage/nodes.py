"""Which nodes stand out of those that ran the same trials: in trials that did not pass, or by slower steps.

Nodes are compared within cells, each with all others that have not been named yet: so that a bad node does not hide a
second one. The p values are one-sided and corrected for all nodes and both questions (Bonferroni): of tables whose
nodes are alike, at most the share ``LEVEL`` names any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, lgamma, log, sqrt

from pytest_aorta.triage import SPEED_MARGIN
from pytest_aorta.triage.facts import CellKey, TrialFacts
from pytest_aorta.triage.rates import stratified_tails

LEVEL = 0.01

#: Questions that are asked of each node.
_QUESTIONS = 2


@dataclass(frozen=True)
class Node:
    """A node, and what its trials say beside those of the nodes that it was compared with.

    Attributes:
        name: its host name.
        trials: that say something of it: all but those that were interrupted.
        bad: of these, those that failed, hung, or came to no result.
        others_bad, others: the same numbers of the other nodes.
        p_bad: of "as often as on the others", one-sided, corrected.
        ratio: of its step times to those of the others; ``None`` where none were measured on both sides.
        p_slow: of "slower by no more than the margin", one-sided, corrected.
    """

    name: str
    trials: int
    bad: int
    others_bad: int
    others: int
    p_bad: float = 1.0
    ratio: float | None = None
    p_slow: float = 1.0

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it stands out, as parts of a sentence; empty where it does not."""
        found = []
        if self.p_bad < LEVEL:
            rest = f"{self.others_bad} of {self.others} on the others"
            found.append(f"{self.bad} of {self.trials} trials did not pass, {rest} ({_p(self.p_bad)})")
        if self.p_slow < LEVEL and self.ratio is not None:
            once = "" if self.trials > 1 else " in its only trial"
            found.append(f"{self.ratio - 1:.0%} slower{once} ({_p(self.p_slow)})")
        return tuple(found)


@dataclass
class _Sums:
    """Of the trials of a cell on a node. Logarithms of step times are less those of the cell's first."""

    trials: int = 0
    bad: int = 0
    timed: int = 0
    sum: float = 0.0
    squares: float = 0.0

    def add(self, other: _Sums, sign: int = 1) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + sign * value)

    @property
    def within(self) -> float:
        return max(0.0, self.squares - self.sum**2 / self.timed)


_Table = dict[CellKey, dict[str, _Sums]]


def nodes_of(trials: Iterable[TrialFacts], margin: float = SPEED_MARGIN) -> list[Node]:
    """All nodes by name; empty where there are not two. ``margin``: of step times, see ``TriageSettings``."""
    table = _summed(trials)
    left = {name for row in table.values() for name in row}
    family = len(left) * _QUESTIONS
    named: list[Node] = []
    if len(left) < 2:
        return []
    while True:
        totals = {cell: _total(row[name] for name in row.keys() & left) for cell, row in table.items()}
        nodes = [_node(name, table, totals, margin, family) for name in sorted(left)]
        worst = min(nodes, key=lambda node: min(node.p_bad, node.p_slow))
        if not worst.reasons or len(left) == 2:
            return sorted([*named, *nodes], key=lambda node: node.name)
        left.remove(worst.name)
        named.append(worst)


def _summed(trials: Iterable[TrialFacts]) -> _Table:
    table: _Table = {}
    origin: dict[CellKey, float] = {}
    for facts in trials:
        if facts.place.host is None or facts.outcome == "interrupted":
            continue
        own = table.setdefault(facts.key, {}).setdefault(facts.place.host, _Sums())
        own.trials += 1
        own.bad += facts.outcome != "ok"
        if facts.steps is not None:
            time = log(facts.steps.median_ms)
            time -= origin.setdefault(facts.key, time)
            own.timed, own.sum, own.squares = own.timed + 1, own.sum + time, own.squares + time**2
    return table


def _total(sums: Iterable[_Sums]) -> _Sums:
    found = _Sums()
    for each in sums:
        found.add(each)
    return found


def _node(name: str, table: _Table, totals: dict[CellKey, _Sums], margin: float, family: int) -> Node:
    sides = []
    for cell, row in table.items():
        if name in row:
            others = replace(totals[cell])
            others.add(row[name], -1)
            sides.append((row[name], others))
    own, rest = _total(each for each, _ in sides), _total(each for _, each in sides)
    found = Node(name, own.trials, own.bad, rest.bad, rest.trials)
    tables = [(own.bad, own.trials, others.bad, others.trials) for own, others in sides if others.trials]
    if tables and own.bad:
        found = replace(found, p_bad=min(1.0, family * stratified_tails(tables)[1]))
    times = [(own, others) for own, others in sides if own.timed and others.timed]
    if times:
        ratio, p = _slower(times, margin)
        found = replace(found, ratio=ratio, p_slow=min(1.0, family * p))
    return found


def _slower(sides: Sequence[tuple[_Sums, _Sums]], margin: float) -> tuple[float, float]:
    """How many times as long steps take, and the p value of "no more than the margin longer".

    A t test within cells, by least squares with cells as a factor and one variance: so that a node with one trial is
    compared with the spread of all others.
    """
    weights = [own.timed * others.timed / (own.timed + others.timed) for own, others in sides]
    differences = [own.sum / own.timed - others.sum / others.timed for own, others in sides]
    difference = sum(weight * each for weight, each in zip(weights, differences, strict=True)) / sum(weights)
    freedom = sum(own.timed + others.timed for own, others in sides) - len(sides) - 1
    squares = sum(weight * (each - difference) ** 2 for weight, each in zip(weights, differences, strict=True))
    squares += sum(own.within + others.within for own, others in sides)
    if freedom < 1 or difference <= log(1 + margin):
        return exp(difference), 1.0
    error = sqrt(squares / freedom / sum(weights))
    if error == 0:
        return exp(difference), 0.0
    from scipy.special import stdtr

    return exp(difference), float(stdtr(freedom, -(difference - log(1 + margin)) / error))


def trials_needed(nodes: int) -> int:
    """Trials on each of so many nodes by which one that never passes stands out, where all others pass."""
    return next(each for each in range(1, 100) if nodes * _QUESTIONS * exp(-_log_choose(nodes * each, each)) < LEVEL)


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def _p(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"


def node_sentences(nodes: Sequence[Node]) -> Iterator[str]:
    """One for each node that stands out, and the list of them for ``drain``."""
    suspects = [node for node in nodes if node.reasons]
    for node in suspects:
        yield f"{node.name}: {'; '.join(node.reasons)}"
    if suspects:
        yield f"to drain: {','.join(node.name for node in suspects)}"
