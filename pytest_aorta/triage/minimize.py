"""Which of a mitigation set's variables are needed: delta debugging, with trials as the oracle."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeVar

from pytest_aorta.triage import MARGIN
from pytest_aorta.triage.columns import counted
from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.sequential import SequentialTest, rate_upper_bound_sequential
from pytest_aorta.triage.verdicts import LEVEL

Element = TypeVar("Element")


def ddmin(elements: Sequence[Element]) -> Generator[tuple[Element, ...], bool, tuple[Element, ...]]:
    """Find a subset that has an effect of which no single element can be left out.

    Yields each subset to be tried, in the order of ``elements``, and is sent whether it has the effect; none is asked
    for twice. All elements together have it, none of them has not: neither is asked for. The proposals depend on the
    answers alone.

    Returns what is left. It is 1-minimal: without any one of its elements the effect is gone. Where the effect is
    monotone (whatever contains a set with the effect has it), no smaller part of it has the effect at all.

    Zeller & Hildebrandt 2002, "Simplifying and isolating failure-inducing input", algorithm *ddmin*: each part, then
    what is left without each part, then twice as many parts. For one element that acts, about 2 log2(n) trials of a
    subset; at worst n**2 + 3 n.
    """
    answers: dict[tuple[int, ...], bool] = {(): False, tuple(range(len(elements))): True}
    left = tuple(range(len(elements)))
    parts = 2
    while len(left) > 1:
        edges = [number * len(left) // parts for number in range(parts + 1)]
        split = [left[start:end] for start, end in pairwise(edges)]
        complements = [tuple(each for each in left if each not in part) for part in split]
        # With two parts, the complements are the parts themselves.
        reduced = None
        for tried in [*split, *(complements if parts > 2 else [])]:
            if tried not in answers:
                answers[tried] = yield tuple(elements[each] for each in tried)
            if answers[tried]:
                reduced = tried
                break
        if reduced is not None:
            parts = 2 if reduced in split else max(parts - 1, 2)
            left = reduced
        elif parts < len(left):
            parts = min(2 * parts, len(left))
        else:
            break
        parts = min(parts, max(len(left), 2))
    return tuple(elements[each] for each in left)


#: ``fails``: a trial of it has failed, and what fixes never does.
Answer = Literal["fixes", "fails", "did not run", "undecided"]

#: After so many trials of which none has come to its main work, a set is not tried any more.
NOT_RUN = 3


@dataclass(frozen=True)
class Wanted:
    """One trial: of these variables (``None`` for the baseline), with this index."""

    variables: tuple[str, ...] | None
    index: int


@dataclass
class Tried:
    """What was found out of some of the variables; ``level`` is the share of that of the whole search.

    ``trials`` and ``failures`` are of those that count; ``undecided`` counts as not fixing.
    """

    variables: tuple[str, ...]
    level: float
    trials: int = 0
    failures: int = 0
    p: float = 1.0
    answer: Answer = "undecided"


@dataclass
class Minimized:
    """What is known at the end.

    Attributes:
        left: the variables that are needed; ``None`` where the whole set was not seen to fix anything.
        tried: in order, the whole set first.
        is_complete: whether the search has come to its end, so that leaving out any one of ``left`` was tried.
    """

    variables: tuple[str, ...]
    left: tuple[str, ...] | None = None
    tried: list[Tried] = field(default_factory=list)
    baseline_trials: int = 0
    baseline_failures: int = 0
    is_complete: bool = False


class Search:
    """The search for the smallest part of a set of variables that still fixes.

    First the baseline has to fail and the whole set to fix; then ``ddmin`` proposes parts. Of each, the k-th trial is
    paired with the k-th of the baseline, whose trials serve all parts, and the pairs are judged after each of them by
    the sequential test. A part is given up with its first failure: to fix is to be seen failing significantly less
    often *and* never. What is not decided after the most trials counts as not fixing.

    The k-th part has n / ((n + k)(n + k - 1)) of the level, n being the number of variables; of all parts together,
    however many there will be, that is 1. So the probability that any part is called fixing although it fails as often
    as the baseline is at most 5 %.

    Args:
        variables: of the set, in its order.
        most: trials of each part.
        most_in_all: trials, with those of the baseline.
        at_once: how many trials may run side by side.
    """

    def __init__(self, variables: Sequence[str], most: int, most_in_all: int, at_once: int = 1) -> None:
        self.found = Minimized(tuple(variables))
        self._most = most
        self._most_in_all = most_in_all
        self._at_once = at_once
        self._started = 0
        self._baseline: list[TrialFacts] = []

    def steps(self) -> Generator[list[Wanted], list[TrialFacts], None]:
        """Yields the trials that are wanted next, is sent what became of them, in that order."""
        found = self.found
        whole = yield from self._try(found.variables)
        if whole.answer != "fixes":
            return
        found.left = found.variables
        search = ddmin(found.variables)
        answer: bool | None = None
        while True:
            try:
                proposal = next(search) if answer is None else search.send(answer)
            except StopIteration as end:
                found.left, found.is_complete = end.value, True
                return
            if self._started >= self._most_in_all:
                return  # ``left`` is what was seen to fix so far
            tried = yield from self._try(proposal)
            answer = tried.answer == "fixes"
            if answer and len(proposal) < len(found.left or ()):
                found.left = proposal

    def _try(self, variables: tuple[str, ...]) -> Generator[list[Wanted], list[TrialFacts], Tried]:
        n, k = len(self.found.variables), len(self.found.tried) + 1
        tried = Tried(variables, LEVEL * n / ((n + k) * (n + k - 1)))
        self.found.tried.append(tried)
        test = SequentialTest(MARGIN, 1 - LEVEL)
        own: list[TrialFacts] = []
        while True:
            self._judge(tried, own, test)
            if tried.answer != "undecided" or self._is_over(own):
                return tried
            wanted = self._next(variables, len(own))
            self._started += len(wanted)
            for one, facts in zip(wanted, (yield wanted), strict=True):
                (self._baseline if one.variables is None else own).append(facts)

    def _next(self, variables: tuple[str, ...], have: int) -> list[Wanted]:
        wanted: list[Wanted] = []
        baseline = len(self._baseline)
        while len(wanted) < self._at_once and have < self._most:
            if baseline <= have:
                wanted.append(Wanted(None, baseline))
                baseline += 1
            wanted.append(Wanted(variables, have))
            have += 1
        return wanted or [Wanted(None, baseline)]

    def _is_over(self, own: list[TrialFacts]) -> bool:
        if self._started >= self._most_in_all or _never_ran(self._baseline):
            return True
        unpaired = sum(facts.is_counted for facts in own) > sum(facts.is_counted for facts in self._baseline)
        return len(own) >= self._most and (not unpaired or len(self._baseline) >= self._most)

    def _judge(self, tried: Tried, own: list[TrialFacts], test: SequentialTest) -> None:
        base = [facts.is_failure for facts in self._baseline if facts.is_counted]
        cell = [facts.is_failure for facts in own if facts.is_counted]
        self.found.baseline_trials, self.found.baseline_failures = len(base), sum(base)
        tried.trials, tried.failures = len(cell), sum(cell)
        test.extend(list(zip(base, cell, strict=False))[len(test.pairs) :])
        tried.p = test.comparison().p
        if tried.failures:
            tried.answer = "fails"
        elif _never_ran(own):
            tried.answer = "did not run"
        elif tried.p <= tried.level:
            tried.answer = "fixes"


def _never_ran(trials: Sequence[TrialFacts]) -> bool:
    return len(trials) >= NOT_RUN and all(facts.outcome == "did not run" for facts in trials)


def conclusion(found: Minimized, name: str) -> tuple[bool, str]:
    """Whether the search for the smallest part of the set ``name`` has succeeded, and what it found, in a sentence."""
    if found.left is None:
        return False, f"nothing to minimize: {_why_nothing(found, name)}"
    left = " ".join(found.left)
    if not found.is_complete:
        return False, f"not at its end (--max-trials): so far, of {name}, {left} is enough"
    needed = "is needed" if len(found.left) == 1 else "are needed, together"
    return True, f"of {counted(len(found.variables), 'variable')} of {name}, {left} {needed}"


def _why_nothing(found: Minimized, name: str) -> str:
    whole = found.tried[0]
    if whole.answer == "fails":
        return f"{name} does not fix, {whole.failures} of {whole.trials} trials failed"
    if whole.answer == "did not run":
        return f"no trial of {name} came to its main work"
    if not found.baseline_trials:
        return "no trial of the baseline came to its main work"
    if not found.baseline_failures:
        return f"no trial of the baseline failed, of {found.baseline_trials}"
    return (
        f"not shown that {name} fixes; {found.baseline_failures} of {found.baseline_trials} trials of the baseline "
        f"failed, and none of {whole.trials} with it: more trials may show it (--aorta-trials, --max-trials)"
    )


def report(found: Minimized, name: str) -> Iterator[str]:
    """What was tried, what remains, and how sure that is, in lines."""
    yield conclusion(found, name)[1]
    rows = [("variables", "trials", "failed", "p", "level", "")]
    rows.append(("(baseline)", str(found.baseline_trials), str(found.baseline_failures), "", "", ""))
    for each in found.tried:
        variables = name if each.variables == found.variables else " ".join(each.variables)
        counts = str(each.trials), str(each.failures)
        rows.append((variables, *counts, f"{each.p:.2g}", f"{each.level:.2g}", each.answer))
    width = max(len(row[0]) for row in rows)
    for variables, trials, failed, p, level, answer in rows:
        yield f"{variables:<{width}}  {trials:>6}  {failed:>6}  {p:>7}  {level:>7}  {answer}".rstrip()
    last = next((each for each in found.tried if each.variables == found.left), None)
    if last is not None and last.answer == "fixes":
        bound = rate_upper_bound_sequential(last.failures, last.trials)
        yield f"with {' '.join(last.variables)}: failure rate below {bound:.1%} (95 %), p = {last.p:.2g}"
        yield f"at most {LEVEL:.0%}: the probability that any of these is called fixing although it is not"
        if found.is_complete and len(last.variables) > 1:
            yield "without any one of them it was not seen to fix"
    for each in found.tried:
        if each.answer in ("undecided", "did not run"):
            yield f"taken as not fixing, though {each.answer}: {' '.join(each.variables)}"
