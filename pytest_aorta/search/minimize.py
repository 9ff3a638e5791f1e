"""Which of a mitigation set's variables are needed: probabilistic delta debugging, with trials as the oracle."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import exp, log
from typing import Any, Literal

from scipy.special import betaln

from pytest_aorta.common.texts import counted
from pytest_aorta.search import Steps, Wanted
from pytest_aorta.triage import MARGIN
from pytest_aorta.triage.columns import below
from pytest_aorta.triage.decisions import NOT_RUN
from pytest_aorta.triage.facts import TrialFacts, judged_together
from pytest_aorta.triage.judging import LEVEL
from pytest_aorta.triage.searches import SearchReport, SearchRow
from pytest_aorta.triage.sequential import SequentialTest, rate_upper_bound_sequential


class Needed:
    """How likely each variable is to be needed, and what to try next.

    Wang, Shen, Chen, Xiong & Zhang 2021, "Probabilistic Delta Debugging": the variables that are the least likely to be
    needed are left out together, so many that the expected number of those that go is the largest. If the effect goes
    with them, one of them at least is needed, which makes each more likely (Bayes).
    """

    def __init__(self, variables: Sequence[str]) -> None:
        prior = min(0.4, max(0.1, 1.5 / len(variables)))
        self.left = dict.fromkeys(variables, prior)

    def next(self) -> tuple[str, ...]:
        """What to leave out of those that are left, in their order; empty when each was shown to be needed."""
        order = sorted(self.left, key=lambda name: self.left[name])
        best, gain, none_needed = 0, 0.0, 1.0
        for number, name in enumerate(order[: len(self.left) - 1], start=1):
            none_needed *= 1 - self.left[name]
            if number * none_needed > gain:
                best, gain = number, number * none_needed
        chosen = set(order[:best])
        return tuple(name for name in self.left if name in chosen)

    def learn(self, names: Sequence[str], has_effect: bool) -> None:
        """Whether what is left has the effect without these."""
        none_needed = 1.0
        for name in names:
            none_needed *= 1 - self.left[name]
        for name in names:
            if has_effect:
                del self.left[name]
            else:
                self.left[name] = 1.0 if len(names) == 1 else self.left[name] / (1 - none_needed)


#: ``acts``: it fails less often than the baseline, about as rarely as the whole set. ``fails``: about as often as the
#: baseline. ``gone``: the baseline fails no more.
Answer = Literal["acts", "fails", "did not run", "undecided", "gone"]

#: The variables of a trial; ``None`` for the baseline.
Part = tuple[str, ...] | None

#: Trials of the baseline without a failure are a fault that has gone where chance would rarely make so many of them.
_GONE = 1e-6

#: What earlier trials of the baseline count for, in trials, beside those that ran with a part.
_EARLIER = 2.0


@dataclass
class Tried:
    """What was found out of some of the variables; ``level`` is the share of that of the whole search.

    ``trials`` and ``failures`` are of those that count, ``base_trials`` and ``base_failures`` of those of the baseline
    that ran by turns with them.
    """

    variables: tuple[str, ...]
    level: float
    trials: int = 0
    failures: int = 0
    base_trials: int = 0
    base_failures: int = 0
    p: float = 1.0
    answer: Answer = "undecided"


@dataclass
class Minimized:
    """What is known at the end.

    Attributes:
        left: the variables that are needed; ``None`` where the whole set was not seen to act.
        unsure: those of ``left`` of which it is not decided.
        tried: in order, the whole set first.
        is_complete: whether the search has come to its end, so that leaving out any one of ``left`` was tried.
        is_at_limit: whether no more trials may run.
        beside: ``left`` by turns with the whole set, which takes the place of the baseline in it; ``None`` where none
            of the trials of ``left`` has failed, or it is the whole set.
        kept: of ``left``, what acts by itself, but less than the whole set; the rest was added to it.
    """

    variables: tuple[str, ...]
    left: tuple[str, ...] | None = None
    unsure: tuple[str, ...] = ()
    tried: list[Tried] = field(default_factory=list)
    is_complete: bool = False
    is_at_limit: bool = False
    beside: Tried | None = None
    kept: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def last(self) -> Tried:
        """What was found out of ``left`` at last."""
        return next(each for each in reversed(self.tried) if each.variables == self.left)


class Minimize:
    """The search for the smallest part of a set of variables that still acts.

    First the whole set has to fail less often than the baseline; then ``Needed`` proposes parts. The trials of each
    alternate with fresh ones of the baseline, so that a machine that changes meanwhile changes both.

    Before it ends, what is left runs by turns with the whole set, unless it hardly fails: it may act, and remove less.
    If it does, it takes the place of the baseline, and of the others that one is added with which it removes as much.

    - A part acts where the sequential test of its pairs says so, whatever the baseline's rate was when, and its trials
      are more like those of the whole set than like the baseline's.
    - It fails where its trials are ``1 / level`` times as likely with the baseline's failure rate as with that of what
      acts. So a residual of some percent is no failure of a part.

    The k-th part has n / ((n + k)(n + k - 1)) of the level, n being the number of variables; of all parts together,
    however many there will be, that is 1. What is not decided after the most trials stays in.

    With ``turns_on`` the whole set makes it fail more often than the baseline, and the smallest part is looked for that
    does. Parts then run by turns with the whole set, as that is what fails: those that *fail* as it does are enough.

    Args:
        variables: of the set, in its order.
        most: trials of each part.
        most_in_all: trials, with those of the baseline.
        at_once: how many trials may run side by side.
        name: of the set, for sentences.
        turns_on: the set makes it fail.
        signature: only failures whose text contains it count; others are passes.
    """

    def __init__(
        self,
        variables: Sequence[str],
        most: int,
        most_in_all: int,
        at_once: int = 1,
        *,
        name: str = "the set",
        turns_on: bool = False,
        signature: str = "",
    ) -> None:
        self.found = Minimized(tuple(variables))
        self._name, self._turns_on, self._signature = name, turns_on, signature
        #: What fails more often: the baseline, or the whole set; and the other one.
        self._failing: Part = self.found.variables if turns_on else None
        self._passing: tuple[str, ...] = () if turns_on else self.found.variables
        self._most, self._most_in_all, self._at_once = most, most_in_all, at_once
        self._started = 0
        self._next_index: dict[Part, int] = {}
        #: Of all trials of what fails, or of what is kept, that count, whether they have failed.
        self._baseline: list[bool] = []
        #: What was seen to act.
        self._acting: list[Tried] = []

    @property
    def result(self) -> Minimized:
        return self.found

    def conclusion(self) -> tuple[bool, str]:
        return conclusion(self.found, self._name)

    def report(self) -> SearchReport:
        return report(self.found, self._name)

    def steps(self) -> Steps:
        """Yields the trials that are wanted next, is sent what became of them, in that order."""
        found = self.found
        first = yield from self._try(self._passing)
        if first.answer != "acts":
            return
        needed = Needed(found.variables)
        found.left = found.variables
        answers: dict[tuple[str, ...], Answer] = {}
        while names := needed.next():
            part = tuple(name for name in needed.left if name not in names)
            if part not in answers:
                if self._started >= self._most_in_all:
                    return
                answers[part] = (yield from self._try(part)).answer
            if answers[part] == "gone":
                return
            needed.learn(names, answers[part] == ("fails" if self._turns_on else "acts"))
            found.left = tuple(needed.left)
            if len(names) == 1 and answers[part] == "undecided":
                found.unsure += names
        while not self._turns_on and found.left != found.variables and (yield from self._removes_less(found.left)):
            more = yield from self._with_one_more(found.left)
            if more is None:
                break
            found.kept, found.left, found.beside = found.kept or found.left, more, None
        found.is_complete = self._started < self._most_in_all or found.beside is not None

    def _with_one_more(
        self, kept: tuple[str, ...]
    ) -> Generator[list[Wanted], list[TrialFacts], tuple[str, ...] | None]:
        """What is kept with the variable that takes it to what the whole set removes; ``None`` where none alone does.

        All run by turns with what is kept, and with the whole set. That it is this one, or none of them, is equally
        likely before, and ``1 - LEVEL`` in the end; those that are ``LEVEL / number`` times as likely as before end.
        """
        rest = [name for name in self.found.variables if name not in kept]
        tried = [Tried(self._ordered((*kept, name)), LEVEL / len(rest)) for name in rest]
        self.found.tried += tried
        whole = self._acting[0]
        base: list[bool] = []
        while asked := [each for each in tried if each.answer == "undecided" and each.trials < self._most]:
            if self._started >= self._most_in_all:
                break
            facts = yield self._wanted([kept, *(each.variables for each in (whole, *asked))])
            base += [facts[0].is_failure] * facts[0].is_counted
            for each, own in zip((whole, *asked), facts[1:], strict=True):
                each.trials += own.is_counted
                each.failures += own.is_counted and own.is_failure
            for each in asked:
                each.base_trials, each.base_failures = len(base), sum(base)
                evidence = self._evidence(each)
                each.p = exp(-max(0.0, evidence))
                each.answer = "fails" if evidence <= log(each.level) else "undecided"
            weights = [exp(self._evidence(each)) for each in tried]
            best = max(range(len(tried)), key=lambda number: weights[number])
            if weights[best] >= (1 - LEVEL) * (1 + sum(weights)):
                tried[best].answer = "acts"
                return tried[best].variables
        return None

    def _ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        chosen = {*names}
        return tuple(name for name in self.found.variables if name in chosen)

    def _wanted(self, parts: Iterable[Part]) -> list[Wanted]:
        """The next trial of each."""
        found = []
        for each in parts:
            index = self._next_index.get(each, 0)
            self._next_index[each] = index + 1
            found.append(Wanted(each, index))
        self._started += len(found)
        self.found.is_at_limit = self._started >= self._most_in_all
        return found

    def _removes_less(self, left: tuple[str, ...]) -> Generator[list[Wanted], list[TrialFacts], bool]:
        """Whether what is left removes less than the whole set; it has to fail for that, or be seen to be rare."""
        last = self.found.last
        while not last.failures and rate_upper_bound_sequential(0, last.trials) > MARGIN.points:
            if last.trials >= self._most or self._started >= self._most_in_all:
                break
            for facts in (yield self._wanted([left] * self._at_once)):
                last.trials += facts.is_counted
                last.failures += facts.is_counted and facts.is_failure
        if not last.failures:
            return False
        beside = self.found.beside = Tried(left, LEVEL)
        test = SequentialTest(MARGIN, 1 - 2 * LEVEL)  # one end of the interval counts
        whole: list[bool] = []
        part: list[bool] = []
        while len(part) < 2 * self._most and self._started < self._most_in_all:
            wanted = self._wanted([self.found.variables, left])
            for own, facts in zip((whole, part), (yield wanted), strict=True):
                own += [facts.is_failure] * facts.is_counted
            beside.trials, beside.failures = len(part), sum(part)
            beside.base_trials, beside.base_failures = len(whole), sum(whole)
            test.pairs += list(zip(map(float, whole), map(float, part), strict=False))[len(test.pairs) :]
            compared = test.comparison()
            beside.p = compared.p
            if compared.p <= LEVEL or compared.interval.high <= MARGIN.points:
                is_more = beside.failures * beside.base_trials > beside.base_failures * beside.trials
                beside.answer = "fails" if is_more and compared.p <= LEVEL else "acts"
                break
        # What follows is compared with these trials: those of before ran beside the baseline, at another time.
        self._acting = [Tried(self.found.variables, LEVEL, len(whole), sum(whole), answer="acts")]
        self._baseline = part
        return beside.answer == "fails"

    def _try(self, variables: tuple[str, ...]) -> Generator[list[Wanted], list[TrialFacts], Tried]:
        n, k = len(self.found.variables), len(self.found.tried) + 1
        tried = Tried(variables, LEVEL * n / ((n + k) * (n + k - 1)))
        self.found.tried.append(tried)
        test = SequentialTest(MARGIN, 1 - LEVEL)
        base: list[TrialFacts] = []
        own: list[TrialFacts] = []
        while True:
            ours, theirs = ([self._fails(facts) for facts in side if facts.is_counted] for side in (own, base))
            tried.trials, tried.failures = len(ours), sum(ours)
            tried.base_trials, tried.base_failures = len(theirs), sum(theirs)
            test.pairs += list(zip(theirs, ours, strict=False))[len(test.pairs) :]
            tried.answer = "did not run" if _never_ran(own) else self._answer(tried, test)
            is_over = self._started >= self._most_in_all or _never_ran(base)
            if len(own) >= self._most:
                is_over |= len(ours) <= len(theirs) or len(base) >= 2 * self._most
            if tried.answer != "undecided" or is_over:
                self._acting += [tried] * (tried.answer == "acts")
                return tried
            wanted: list[Wanted] = []
            while not wanted or len(wanted) < self._at_once:
                wanted += self._wanted((self._failing, variables) if len(own) < self._most else (self._failing,))
            for one, facts in zip(wanted, (yield wanted), strict=True):
                (base if one.arm == self._failing else own).append(facts)
                if one.arm == self._failing and facts.is_counted:
                    self._baseline.append(self._fails(facts))

    def _fails(self, facts: TrialFacts) -> bool:
        return facts.is_failure and (facts.signature is None or self._signature in facts.signature.text)

    def _answer(self, tried: Tried, test: SequentialTest) -> Answer:
        found = test.comparison()
        tried.p = found.p
        is_lower = tried.failures * tried.base_trials < tried.base_failures * tried.trials
        is_shown = found.p <= tried.level and is_lower
        if not self._acting:
            return "acts" if is_shown else "fails" if found.ratio.low >= 0.5 else "undecided"
        evidence = self._evidence(tried)
        if is_shown and evidence > 0:
            return "acts"
        if evidence <= log(tried.level):
            return "fails"
        # Whether the fault has gone: the baseline has not failed for long.
        last = next((number for number, failed in enumerate(reversed(self._baseline)) if failed), 0)
        failures, passes = sum(self._baseline), len(self._baseline) - last - sum(self._baseline)
        is_gone = last > 0 and _log_chance(0, last, failures + 0.5, passes + 0.5) < log(_GONE)
        return "gone" if is_gone else "undecided"

    def _evidence(self, tried: Tried) -> float:
        """How much more likely the trials are with the rate of what acts than with the baseline's, as a logarithm."""
        rate = (sum(self._baseline) + 0.5) / (len(self._baseline) + 1)
        failures, trials = sum(each.failures for each in self._acting), sum(each.trials for each in self._acting)
        passes, base_passes = tried.trials - tried.failures, tried.base_trials - tried.base_failures
        return _log_chance(tried.failures, passes, failures + 0.5, trials - failures + 0.5) - _log_chance(
            tried.failures, passes, tried.base_failures + _EARLIER * rate, base_passes + _EARLIER * (1 - rate)
        )


def _log_chance(failures: int, passes: int, a: float, b: float) -> float:
    """Of a series of trials whose failure rate has the distribution Beta(a, b)."""

    return float(betaln(failures + a, passes + b) - betaln(a, b))


def _never_ran(trials: Sequence[TrialFacts]) -> bool:
    return len(trials) >= NOT_RUN and all(facts.outcome == "did not run" for facts in judged_together(trials))


def conclusion(found: Minimized, name: str) -> tuple[bool, str]:
    """Whether the search for the smallest part of the set ``name`` has succeeded, and what it found, in a sentence."""
    if found.left is None:
        whole = found.tried[0]
        without = f"{whole.base_failures} of {whole.base_trials}"
        if whole.answer == "did not run":
            why = f"no trial of {name} came to its main work"
        elif not whole.base_trials:
            why = "no trial of the baseline came to its main work"
        elif not whole.base_failures:
            why = f"no trial of the baseline failed, of {whole.base_trials}"
        elif whole.answer == "fails":
            failed = f"{whole.failures} of {whole.trials} trials failed, {without} without it"
            why = f"{name} does not fix it, nor makes it much rarer: {failed}"
        else:
            failed = f"{without} trials of the baseline failed, and {whole.failures} of {whole.trials} with it"
            why = f"not shown that {name} acts; {failed}: more trials may show it (--aorta-trials, --max-trials)"
        return False, f"nothing to minimize: {why}"
    left = " ".join(found.left)
    if found.tried[-1].answer == "gone":
        return False, f"the fault went away: the baseline fails no more. So far, of {name}, {left} is enough"
    if not found.is_complete:
        limit = " (--max-trials)" if found.is_at_limit else ""
        return False, f"not at its end{limit}: so far, of {name}, {left} is enough"
    if found.unsure:
        unsure = " ".join(found.unsure)
        return False, f"of {name}, {left} is enough; not decided whether {unsure} can go (--aorta-trials)"
    is_one, last = len(found.left) == 1, found.beside or found.last
    still = f"; {last.failures} of {last.trials} trials still fail with {'it' if is_one else 'them'}"
    of_all = f"of {counted(len(found.variables), 'variable')} of {name}, {left}"
    if found.beside is not None and found.beside.answer != "acts":
        numbers = f"{found.beside.base_failures} of {found.beside.base_trials} with all of {name}"
        if found.beside.answer == "fails":
            is_open = any({*found.left} < {*each.variables} and each.answer == "undecided" for each in found.tried)
            why = "not decided which other one adds to it" if is_open else "no other one alone adds to it"
            return False, f"{of_all} act{'s' * is_one}, but less than all of them, and {why}{still}, {numbers}"
        return False, f"{of_all} act{'s' * is_one}; not decided whether as much as all of them{still}, {numbers}"
    needed = "is needed" if is_one else "are needed, together"
    if found.kept:
        needed += f", as {' '.join(found.kept)} alone removes less"
    return True, f"{of_all} {needed}{still if last.failures else ''}"


def _beside(tried: Tried) -> str:
    return f"{tried.failures} of {tried.trials} trials failed, {tried.base_failures} of {tried.base_trials}"


def rows_of(found: Minimized, name: Callable[[Tried], str], answers: Mapping[str, str]) -> tuple[SearchRow, ...]:
    """A row for each part: how it failed, how what it ran by turns with did, and the answer, in other words."""
    rows = []
    for each in found.tried:
        counts = f"{each.failures} of {each.trials}", f"{each.base_failures} of {each.base_trials}"
        cells = name(each), *counts, f"{each.p:.2g}", f"{each.level:.2g}", answers.get(each.answer, each.answer)
        rows.append(SearchRow(cells, each.failures, each.trials, each.variables == found.left))
    return tuple(rows)


def report(found: Minimized, name: str) -> SearchReport:
    """What was tried, what remains, and how sure that is."""
    rows = rows_of(found, lambda each: name if each.variables == found.variables else " ".join(each.variables), {})
    head = "variables", "failed", "baseline", "p", "level", ""
    return SearchReport(*conclusion(found, name), head, rows, tuple(_notes(found, name)))


def _notes(found: Minimized, name: str) -> Iterator[str]:
    if found.left is not None and found.last.answer == "acts":
        last = found.last
        bound = rate_upper_bound_sequential(last.failures, last.trials)
        yield f"with {' '.join(last.variables)}: failure rate below {below(bound)} (95 %), p = {last.p:.2g}"
        if found.beside is not None:
            yield f"beside the whole set: {_beside(found.beside)} with all of {name} (p = {found.beside.p:.2g})"
        yield f"at most {LEVEL:.0%}: the probability that any answer on a part is wrong"
    for each in found.tried[1:]:
        is_added = {*found.kept} < {*each.variables} if found.kept else False
        if each.answer in ("undecided", "did not run") and not is_added:
            yield f"taken as not acting, though {each.answer}: {' '.join(each.variables)}"
