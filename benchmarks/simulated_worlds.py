"""Worlds with known causes of failures, and a judge of the sentences that a triage says about them.

A world says when and where trials run and how each ends, as a real run would record it; it knows no rule of the
package. A triage gets the facts of its trials through the public API: the table, its sentences and the decisions that
stop cells are read. Which statements are false follows from the world alone (``Truth``).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import comb, log
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.columns import conclusions
from pytest_aorta.triage.decisions import Decisions
from pytest_aorta.triage.facts import Place, TrialFacts, TrialSteps, facts_of
from pytest_aorta.triage.verdicts import Table, Triage

LEVEL = 0.05

#: How a trial ends: well; with a NaN loss; a crash; a hang in its work; a hang before it had a process of its own; a
#: death before its main work.
Fate = Literal["ok", "nan", "crash", "hang", "never began", "died early"]

_ENDS: Mapping[Fate, dict[str, Any]] = {
    "ok": {"exit_status": "ok", "result": {"passed": True, "main_work_started": True}},
    "nan": {
        "exit_status": "workload_failed",
        "result": {"passed": False, "main_work_started": True, "failure_details": [{"reason": "loss is nan"}]},
        "failure": {"phase": "run", "kind": "result"},
    },
    "crash": {
        "exit_status": "workload_failed",
        "result": {"passed": False, "main_work_started": True},
        "failure": {"phase": "run", "kind": "signal", "signal": "SIGSEGV"},
    },
    "hang": {
        "exit_status": "timeout",
        "result": {"passed": False, "main_work_started": True},
        "failure": {"phase": "run", "kind": "timeout", "message": "no end after 60 s"},
    },
    "never began": {
        "exit_status": "timeout",
        "result": {"passed": False, "main_work_started": False},
        "failure": {"phase": "launch", "kind": "timeout", "message": "the modules were not imported after 300 s"},
    },
    "died early": {
        "exit_status": "infrastructure_failed",
        "result": {"passed": False, "main_work_started": False},
        "failure": {"phase": "setup", "kind": "exception", "type": "RuntimeError", "message": "no device"},
    },
}

#: Effect of a cell's variables on its failures.
Act = Literal["lowers", "raises", "exchanges"]


@dataclass(frozen=True)
class Truth:
    """True statements about a world.

    Attributes:
        rates: failure rate of each cell in the long run; the first cell is the baseline.
        acts: effects of the variables of each cell; none for a missing cell.
        ways: the same for one way to fail, named by words of its signature; as ``acts`` for a missing way.
        culprit: pattern for the names of places that make trials fail; empty for none.
        in_runs: a failure makes the next one likelier.
        changes: rates change over time.
        in_starts: trials of one process end alike.
        by_hash: the hash seed makes trials fail.
        slower: cells whose steps take longer.
        says, lies: patterns of a sentence that names the cause, and of a false one.
    """

    rates: tuple[float, ...]
    acts: Mapping[int, frozenset[Act]] = field(default_factory=dict)
    ways: Mapping[tuple[int, str], frozenset[Act]] = field(default_factory=dict)
    culprit: str = ""
    in_runs: bool = False
    changes: bool = False
    in_starts: bool = False
    by_hash: bool = False
    slower: frozenset[int] = frozenset()
    says: str = ""
    lies: str = ""


@dataclass(frozen=True)
class Spot:
    """One trial of a run: its cell, its place, and its position ``turn`` in the run.

    ``start``: the process of its cell that forked it; ``None`` for a process of its own. ``seed``: its hash seed.
    """

    cell: int
    index: int
    turn: int
    place: Place
    start: int | None = None
    seed: int | None = None


Numbers = npt.NDArray[np.float64]

#: The step times of trials, in ms.
Times = Callable[[np.random.Generator, Sequence[Spot]], Numbers]


@dataclass(frozen=True)
class World:
    """A world.

    Attributes:
        name: of its row in the page.
        truth: true statements about it.
        spots: draws the trials of a run, in the order in which they begin.
        fates: draws how they end.
        until_decided: cells stop when they are decided.
        oracle: for the best test, which knows the world: the trials that it uses; ``fails``: the ends that it counts as
            failures. It compares the acting cell with the baseline. ``None`` if no cell acts.
        times: draws the step time of each trial in ms; by default equal with a noise of 3 %.
        reference: a test that finds the acting, or the slower, cell; by default the best test of rates.
        run_seed: of ``--aorta-seed``.
    """

    name: str
    truth: Truth
    spots: Callable[[np.random.Generator], list[Spot]]
    fates: Callable[[np.random.Generator, Sequence[Spot]], list[Fate]]
    until_decided: bool = False
    oracle: Callable[[Spot], bool] | None = lambda spot: True
    fails: frozenset[Fate] = frozenset({"nan", "crash", "hang"})
    times: Times | None = None
    reference: Callable[[Sequence[Spot], Sequence[Fate], Numbers], bool] | None = None
    run_seed: int | None = None

    @property
    def acting(self) -> int | None:
        """The cell that does something."""
        return next(iter((*self.truth.acts, *self.truth.slower)), None)


@dataclass
class Seen:
    """Results of the triages of one world, as numbers of triages.

    Attributes:
        wrong: anything false was said.
        lower, fisher: other rules falsely call a cell better: any lower rate than the baseline's at the end; p < 0.05
            in Fisher's test after any trial.
        found: the acting cell was found; if none acts, the share of cells called no cure.
        best: the best test finds the acting cell.
        causes: the culprit, runs or changes are named.
        trials, best_trials: trials of the acting cell (if none acts, mean over cells), and trials of the best test.
        what, example: false statements with their numbers, and one example of each.
    """

    triages: int = 0
    wrong: int = 0
    lower: int = 0
    fisher: int = 0
    found: float = 0.0
    best: int = 0
    causes: int = 0
    trials: float = 0.0
    best_trials: float = 0.0
    what: Counter[str] = field(default_factory=Counter)
    example: dict[str, str] = field(default_factory=dict)

    def add(self, other: Seen) -> None:
        """Add the results of other triages."""
        for name, number in vars(other).items():
            if isinstance(number, int | float):
                setattr(self, name, getattr(self, name) + number)
        self.what += other.what
        self.example = other.example | self.example


def simulate_one(group: str, number: int, triages: Sequence[int]) -> Seen:
    """``simulate``, for another process."""
    return simulate(worlds()[group][number], triages)


def simulate(world: World, triages: Sequence[int]) -> Seen:
    """Simulate and judge triages by their numbers; a number has the same seed in each version of the package."""
    seen = Seen()
    for number in triages:
        generator = np.random.default_rng([number, *world.name.encode()])
        spots = world.spots(generator)
        fates = world.fates(generator, spots)
        times = (world.times or _noise)(generator, spots)
        table = _judged(world, spots, fates, times).table()
        sentences = [*conclusions(table), *table.warnings]
        false = {*_false_verdicts(world, table), *_false_sentences(world.truth, sentences)}
        seen.triages += 1
        seen.wrong += bool(false)
        seen.what.update(false)
        seen.example = {each: f"triage {number}: {' | '.join(sentences)}" for each in false} | seen.example
        lower, fisher = _others(world, spots, fates)
        seen.lower += lower
        seen.fisher += fisher
        seen.found += _found(world, table)
        seen.causes += _names_the_cause(world.truth, table, sentences)
        totals = [row.cell.total for row in table.rows]
        seen.trials += sum(totals) / len(totals) if world.acting is None else totals[world.acting]
        won, needed = _best(world, spots, fates, times)
        seen.best += won
        seen.best_trials += needed
    return seen


# --- sentences -------------------------------------------------------------------------------------------------------

_SUSPECTS = re.compile(r"suspect|is the cause|than elsewhere")
_RUNS = re.compile(r"(?<!may )come in runs")
_TIME = re.compile(r"over the run|drift")
_STARTS = re.compile(r"at its start|alike here|processes of their own fail")
_HASH = re.compile(r"PYTHONHASHSEED decides")


def _names_the_cause(truth: Truth, table: Table, sentences: Sequence[str]) -> bool:
    """Whether the cause of failures, or of dependent trials, is named, or a place is said to be a possible cause."""
    if truth.culprit and any(row.verdict.kind == "confounded" for row in table.rows):
        return True
    if truth.says:
        return any(re.search(truth.says, sentence) for sentence in sentences)
    if truth.by_hash or truth.in_starts:
        return any((_HASH if truth.by_hash else _STARTS).search(sentence) for sentence in sentences)
    places = [sentence for sentence in sentences if _SUSPECTS.search(sentence)]
    if truth.culprit and any(re.search(truth.culprit, sentence) for sentence in places):
        return True
    return (truth.in_runs or truth.changes) and any(_RUNS.search(each) or _TIME.search(each) for each in sentences)


def _false_verdicts(world: World, table: Table) -> list[str]:
    truth, false = world.truth, []
    for number, row in enumerate(table.rows):
        acts = truth.acts.get(number, frozenset())
        kind = row.verdict.kind
        false += [f"{kind}: {why}" for why in _false(kind, acts)]
        if row.verdict.is_same and acts:
            false.append("the same rate: it is not")
        is_shown = kind == "no cure" and not row.verdict.is_same and not row.verdict.is_likely
        if is_shown and truth.rates[number] < truth.rates[0] / 2:
            false.append("no cure: it is one")
        bound = row.rate_below if kind in ("fixes", "reduces") else None
        if bound is not None and truth.rates[number] >= bound:
            false.append("the bound of `fixes`")
        removes = row.verdict.removes
        if removes is not None and truth.rates[number] > (1 - removes) * truth.rates[0]:
            false.append("the share of failures that it removes")
        speed = row.speed.kind if world.times is not None and row.speed is not None else "undecided"
        if speed not in ("undecided", "n/a", "slower" if number in truth.slower else "similar"):
            false.append(f"{speed}: it is not")
        for way in row.by_signature:
            of_way = next((acts for (cell, words), acts in truth.ways.items()
                           if cell == number and words in way.signature.text), acts)  # fmt: skip
            false += [f"{way.verdict.kind} of one way to fail: {why}" for why in _false(way.verdict.kind, of_way)]
    return false


def _false(kind: str, acts: frozenset[Act]) -> list[str]:
    match kind:
        case "fixes" | "reduces" if "lowers" not in acts:
            return ["it does not"]
        case "worse" if "raises" not in acts:
            return ["it is not"]
    return ["it does not"] if kind.startswith("exchange") and "exchanges" not in acts else []


def _false_sentences(truth: Truth, sentences: Sequence[str]) -> list[str]:
    false = []
    for sentence in sentences:
        if truth.lies and re.search(truth.lies, sentence):
            false.append("a sentence that is false here")
        if _SUSPECTS.search(sentence) and not (truth.culprit and re.search(truth.culprit, sentence)):
            false.append("suspects what is innocent")
        if _RUNS.search(sentence) and not (truth.in_runs or truth.changes):
            false.append("failures in runs")
        if _STARTS.search(sentence) and not truth.in_starts:
            false.append("what a process draws at its start")
        if _HASH.search(sentence) and not truth.by_hash:
            false.append("the hash seed")
        if "step times" in sentence and _TIME.search(sentence) and not truth.changes:
            false.append("a change of the step times")
        elif "step times" not in sentence and _TIME.search(sentence) and not (truth.changes or truth.in_runs):
            false.append("a change over time")
        nothing = re.search(r"(?:Nothing to fix|No failure): .* is below ([\d.]+)%", sentence)
        if nothing and truth.rates[0] >= float(nothing[1]) / 100:
            false.append("the bound of `nothing to fix`")
    return false


def _found(world: World, table: Table) -> float:
    if world.acting is None:
        others = [row.verdict.kind == "no cure" and not row.verdict.is_likely for row in table.rows[1:]]
        return sum(others) / len(others)
    if world.acting in world.truth.slower:
        speed = table.rows[world.acting].speed
        return float(speed is not None and speed.kind == "slower")
    kind, acts = table.rows[world.acting].verdict.kind, world.truth.acts[world.acting]
    said = {"fixes": "lowers", "reduces": "lowers", "leaves": "lowers", "worse": "raises"}.get(kind, kind)
    return float(any(said.startswith(act[:8]) for act in acts))


# --- a run -----------------------------------------------------------------------------------------------------------


def _noise(generator: np.random.Generator, spots: Sequence[Spot]) -> Numbers:
    return np.asarray(np.exp(0.03 * generator.standard_normal(len(spots))) * 10)


def _judged(world: World, spots: Sequence[Spot], fates: Sequence[Fate], times: Numbers) -> Triage:
    """The triage of a run at its end."""
    triage = Triage(TriageSettings(sequential=world.until_decided))
    decisions = Decisions(triage) if world.until_decided else None
    cells = len(world.truth.rates)
    keys = [_template(cell, "ok").key for cell in range(cells)]
    for cell, key in enumerate(keys):
        triage.declare(key, "local", _template(cell, "ok").mitigations)
    between, looked = max(4, len(spots) // cells // _LOOKS), 0
    for spot, fate, step_ms in zip(spots, fates, times, strict=True):
        # Decisions do not depend on how often one looks, but a look costs more than the rest.
        if decisions is not None and spot.index >= looked + between:
            for key in keys if not looked else keys[:1]:
                decisions.update(key)
            looked = spot.index
            if len(decisions.stopped) == cells:
                break
        if decisions is None or keys[spot.cell] not in decisions.stopped:
            triage.add(replace(_facts(spot, fate, float(step_ms)), run_seed=world.run_seed))
    return triage


#: Looks at a run, at most every fourth round; the baseline's family is looked at together.
_LOOKS = 20


def _facts(spot: Spot, fate: Fate, step_ms: float) -> TrialFacts:
    facts = _template(spot.cell, fate)
    hours, rest = divmod(spot.turn * 20, 3600)
    return replace(
        facts,
        trial_id=f"{facts.trial_id}{spot.index}",
        index=spot.index,
        file=f"{facts.file}{spot.index}.json",
        steps=TrialSteps(array("d", [step_ms])) if fate in ("ok", "nan") else None,
        started_at=f"2026-01-{1 + hours // 24:02}T{hours % 24:02}:{rest // 60:02}:{rest % 60:02}.000+00:00",
        place=spot.place,
        start=spot.start,
        hash_seed=spot.seed,
    )


@cache
def _template(cell: int, fate: Fate) -> TrialFacts:
    name = "none" if cell == 0 else f"m_{'abcdefghijkl'[cell - 1]}"
    record = {
        "trial_id": f"gemm_d0_m{cell}_t",
        "workload": "gemm",
        "cell": f"local-{name}",
        "trial_index": 0,
        "execution_env": {"kind": "local", "name": "local"},
        "mitigations_applied": [name],
        "wall_clock_sec": None if fate == "never began" else 20.0,
        "started_at": "",
        "host": "node",
        **_ENDS[fate],
    }
    return facts_of(record, f"gemm/local-{name}/trial_")


Order = Literal["by turns", "shuffled", "cell after cell"]


def ordered(
    generator: np.random.Generator, cells: int, trials: int, order: Order = "shuffled"
) -> list[tuple[int, int]]:
    """Cell and index of all trials, in the order in which they begin; the first round is always by turns."""
    if order == "cell after cell":
        return [(cell, index) for cell in range(cells) for index in range(trials)]
    found = []
    for index in range(trials):
        turn = generator.permutation(cells) if index and order == "shuffled" else range(cells)
        found += [(int(cell), index) for cell in turn]
    return found


def on_one_host(cells: int, trials: int, order: Order = "shuffled") -> Callable[[np.random.Generator], list[Spot]]:
    """A run on one host, one trial after the other."""
    place = Place("node_0")
    return lambda generator: [
        Spot(*each, turn, place) for turn, each in enumerate(ordered(generator, cells, trials, order))
    ]


def in_starts(
    cells: int, trials: int, starts: int, *, even: bool = True
) -> Callable[[np.random.Generator], list[Spot]]:
    """Trials 0, 1 and every 20th are processes of their own; the others are forks of ``starts`` processes per cell.

    Starts serve one after the other, with equal numbers of trials or (not ``even``) any. Without starts, all trials are
    processes of their own. Starts, or trials, of one number have the same hash seed in all cells.
    """
    forked = [index for index in range(trials) if index > 1 and index % 20] if starts else []

    def spots(generator: np.random.Generator) -> list[Spot]:
        seeds = generator.choice(2**32, size=trials + starts, replace=False)
        of: dict[tuple[int, int], int] = {}
        for cell in range(cells):
            ends = np.linspace(0, len(forked), starts + 1)[1:-1].round()
            if not even:
                ends = np.sort(generator.choice(np.arange(1, len(forked)), starts - 1, replace=False))
            of |= {(cell, index): int((ends <= number).sum()) for number, index in enumerate(forked)}
        return [
            replace(spot, start=start, seed=int(seeds[spot.index if start is None else trials + start]))
            for spot in on_one_host(cells, trials)(generator)
            for start in [of.get((spot.cell, spot.index))]
        ]

    return spots


def on_devices(
    cells: int, trials: int, devices: int, placing: Literal["balanced", "free", "coinciding"] = "balanced"
) -> Callable[[np.random.Generator], list[Spot]]:
    """A run with as many slots as devices, one device each.

    ``balanced``: each cell sees all devices in turn, in a random order. ``free``: whichever is free; trials take about
    equally long. ``coinciding``: the turns of cells and devices coincide.
    """

    def spots(generator: np.random.Generator) -> list[Spot]:
        order: Order = "by turns" if placing == "coinciding" else "shuffled"
        blocks = {cell: _blocks(generator, trials, devices) for cell in range(cells)}
        free = np.zeros(devices)
        found = []
        for turn, (cell, index) in enumerate(ordered(generator, cells, trials, order)):
            device = {"balanced": blocks[cell][index], "free": int(free.argmin()), "coinciding": cell % devices}[
                placing
            ]
            free[device] = free.max() if placing != "free" else free[device]
            free[device] += np.exp(0.1 * generator.standard_normal())
            found.append(Spot(cell, index, turn, Place("node_0", (device,), slot=device)))
        return found

    return spots


def _blocks(generator: np.random.Generator, trials: int, places: int) -> list[int]:
    rounds = -(-trials // places)
    return [int(place) for _ in range(rounds) for place in generator.permutation(places)]


def on_nodes(
    cells: int, trials: int, nodes: int, group: int, *, across: bool = True
) -> Callable[[np.random.Generator], list[Spot]]:
    """Jobs of a scheduler: of ``group`` rounds of all cells, or (not ``across``) of one cell."""

    def spots(generator: np.random.Generator) -> list[Spot]:
        jobs = []
        for start in range(0, trials, group):
            rounds = range(start, min(start + group, trials))
            if across:
                jobs.append([(int(cell), index) for index in rounds for cell in generator.permutation(cells)])
            else:
                jobs += [[(cell, index) for index in rounds] for cell in range(cells)]
        order = _blocks(generator, len(jobs), nodes)
        found = []
        for number, (job, node) in enumerate(zip(jobs, order, strict=False)):
            place = Place(f"node_{node}", slot=0, job=str(1000 + number))
            # Jobs on different nodes run at the same time.
            begin = number // nodes * max(map(len, jobs))
            found += [(begin + turn, Spot(*each, 0, place)) for turn, each in enumerate(job)]
        found.sort(key=lambda each: each[0])
        return [replace(spot, turn=turn) for turn, (_, spot) in enumerate(found)]

    return spots


# --- how trials end --------------------------------------------------------------------------------------------------

Fates = Callable[[np.random.Generator, Sequence[Spot]], list[Fate]]


def by_chance(rate: Callable[[Spot], float], way: Fate = "nan") -> Fates:
    """Each trial fails on its own."""

    def fates(generator: np.random.Generator, spots: Sequence[Spot]) -> list[Fate]:
        lots = generator.random(len(spots))
        return [way if lot < rate(spot) else "ok" for lot, spot in zip(lots, spots, strict=True)]

    return fates


def alike(rates: Sequence[float], follows: float) -> Fates:
    """With the chance ``follows`` a trial ends as the coin of its process, tossed once; else it tosses its own.

    The correlation within a start is the square of this chance.
    """

    def fates(generator: np.random.Generator, spots: Sequence[Spot]) -> list[Fate]:
        coins: dict[tuple[int, int], bool] = {}
        found: list[Fate] = []
        for spot in spots:
            tossed = bool(generator.random() < rates[spot.cell])
            if spot.start is not None and generator.random() < follows:
                tossed = coins.setdefault((spot.cell, spot.start), tossed)
            found.append("nan" if tossed else "ok")
        return found

    return fates


def by_hash(rates: Sequence[float]) -> Fates:
    """The hash seed decides: in a cell with a lower rate, a part of the seeds that fail elsewhere."""

    def fates(generator: np.random.Generator, spots: Sequence[Spot]) -> list[Fate]:
        coins: dict[int | None, float] = {}
        return ["nan" if coins.setdefault(spot.seed, float(generator.random())) < rates[spot.cell] else "ok"
                for spot in spots]  # fmt: skip

    return fates


def in_runs(rate: float, mean: float, *, per_cell: bool, cured: int | None = None) -> Fates:
    """Failures in runs of this mean length: of each cell, or over the whole run; a Markov chain."""
    begins = rate / (1 - rate) / mean

    def fates(generator: np.random.Generator, spots: Sequence[Spot]) -> list[Fate]:
        lots = generator.random(len(spots))
        state: dict[int, bool] = {}
        found: list[Fate] = []
        for lot, spot in zip(lots, spots, strict=True):
            chain = spot.cell if per_cell else 0
            likely = rate if chain not in state else 1 - 1 / mean if state[chain] else begins
            state[chain] = bool(lot < likely)
            found.append("nan" if state[chain] and spot.cell != cured else "ok")
        return found

    return fates


def drifting(first: float, last: float) -> Fates:
    """The failure rate rises, or falls, over the run."""

    def fates(generator: np.random.Generator, spots: Sequence[Spot]) -> list[Fate]:
        return by_chance(lambda spot: first + (last - first) * spot.turn / (len(spots) - 1))(generator, spots)

    return fates


def dying_early(rate: float, cell: int, share: float) -> Fates:
    """In one cell, this share of the trials that would fail dies before the main work."""

    def fates(generator: np.random.Generator, spots: Sequence[Spot]) -> list[Fate]:
        found = by_chance(lambda spot: rate)(generator, spots)
        lots = generator.random(len(spots))
        return ["died early" if fate == "nan" and spot.cell == cell and lot < share else fate
                for fate, spot, lot in zip(found, spots, lots, strict=True)]  # fmt: skip

    return fates


def one_event(rate: float) -> Fates:
    """The preparation of a random cell hangs once: none of its trials ever has a process."""

    def fates(generator: np.random.Generator, spots: Sequence[Spot]) -> list[Fate]:
        found = by_chance(lambda spot: rate)(generator, spots)
        hit = int(generator.integers(1 + max(spot.cell for spot in spots)))
        return ["never began" if spot.cell == hit else fate for fate, spot in zip(found, spots, strict=True)]

    return fates


def two_ways(rates: Callable[[Spot], tuple[float, float]], ways: tuple[Fate, Fate]) -> Fates:
    """Two ways to fail: only a trial that the first has not hit can fail in the second."""

    def fates(generator: np.random.Generator, spots: Sequence[Spot]) -> list[Fate]:
        lots = generator.random((len(spots), 2))
        found: list[Fate] = []
        for (one, other), spot in zip(lots, spots, strict=True):
            first, second = rates(spot)
            found.append(ways[0] if one < first else ways[1] if other < second else "ok")
        return found

    return fates


# --- other rules -----------------------------------------------------------------------------------------------------


def _others(world: World, spots: Sequence[Spot], fates: Sequence[Fate]) -> tuple[bool, bool]:
    """Whether other rules falsely call a cell better: a lower rate at the end; Fisher's test after any trial."""
    found, at_any_time = Counter[tuple[int, bool]](), False
    for spot, fate in zip(spots, fates, strict=True):
        if fate not in ("never began", "died early"):
            found[spot.cell, fate in world.fails] += 1
        numbers = found[spot.cell, True], found[spot.cell, False], found[0, True], found[0, False]
        innocent = spot.cell and "lowers" not in world.truth.acts.get(spot.cell, ())
        at_any_time = at_any_time or (bool(innocent) and _fisher_lower(*numbers))
    lower = any(
        found[cell, True] * found[0, False] < found[0, True] * found[cell, False]
        for cell in range(1, len(world.truth.rates))
        if "lowers" not in world.truth.acts.get(cell, ())
    )
    return lower, at_any_time


@cache
def _fisher_lower(failures: int, passes: int, base_failures: int, base_passes: int) -> bool:
    """Whether the rate is lower, and p < 0.05 in Fisher's two-sided test."""
    if failures * base_passes >= base_failures * passes:
        return False
    trials, base_trials, both = failures + passes, base_failures + base_passes, failures + base_failures
    ways = [comb(trials, each) * comb(base_trials, both - each) for each in range(both + 1)]
    return sum(number for number in ways if number <= ways[failures]) < LEVEL * sum(ways)


# --- the best test for a world ---------------------------------------------------------------------------------------


def _best(world: World, spots: Sequence[Spot], fates: Sequence[Fate], times: Numbers) -> tuple[bool, float]:
    """Whether the best test finds the acting cell, and after how many of its trials."""
    if world.reference is not None:
        return world.reference(spots, fates, times), sum(spot.cell == world.acting for spot in spots)
    if world.acting is None or world.oracle is None:
        return False, 0.0
    sides = [
        [fate in world.fails for spot, fate in zip(spots, fates, strict=True)
         if spot.cell == cell and world.oracle(spot) and fate not in ("never began", "died early")]
        for cell in (0, world.acting)
    ]  # fmt: skip
    base, cell = sides
    if not world.until_decided:
        told_apart = bool(cell and base) and barnard(len(cell), len(base))[sum(cell), sum(base)] < LEVEL
        return bool(told_apart), len(cell)
    return _double_dichotomies(base, cell, world.truth.rates[0], world.truth.rates[world.acting])


@cache
def barnard(trials: int, base_trials: int) -> npt.NDArray[np.float64]:
    """The p value of Barnard's two-sided test (1945; pooled z), by failures and failures of the baseline."""
    failures, base = np.arange(trials + 1)[:, None], np.arange(base_trials + 1)[None, :]
    pooled = (failures + base) / (trials + base_trials)
    error = np.sqrt(pooled * (1 - pooled) * (1 / trials + 1 / base_trials))
    z = np.abs(failures / trials - base / base_trials) / np.where(error > 0, error, 1)
    order = np.argsort(-z, axis=None, kind="stable")
    # Equally extreme tables share the p value of the last of them.
    last = np.searchsorted(-z.ravel()[order], -z.ravel() + 1e-9, side="right") - 1
    worst = np.zeros(z.size)
    for rate in np.sin(np.linspace(0, np.pi / 2, 66)[1:-1]) ** 2:
        chances = binom.pmf(failures, trials, rate) * binom.pmf(base, base_trials, rate)
        worst = np.maximum(worst, np.cumsum(chances.ravel()[order])[last])
    return np.minimum(1, worst).reshape(z.shape)


def _double_dichotomies(
    base: Sequence[bool], cell: Sequence[bool], base_rate: float, rate: float, power: float = 0.9
) -> tuple[bool, float]:
    """Wald's sequential test of two rates whose odds ratio it knows (Wald 1947, chapter 6).

    It looks only at pairs that differ, at 2.5 % on the side that it knows to be right.
    """
    theta = base_rate * (1 - rate) / (base_rate * (1 - rate) + rate * (1 - base_rate))
    against = {True: log(theta / 0.5), False: log((1 - theta) / 0.5) if theta < 1 else -np.inf}
    evidence = 0.0
    for number, (one, other) in enumerate(zip(base, cell, strict=False), 1):
        if one != other:
            evidence += against[one]
        if evidence >= log(power / (LEVEL / 2)):
            return True, number
        if evidence <= log((1 - power) / (1 - LEVEL / 2)):
            return False, number
    return False, min(len(base), len(cell))


# --- the worlds ------------------------------------------------------------------------------------------------------

LOWERS: frozenset[Act] = frozenset({"lowers"})
RAISES: frozenset[Act] = frozenset({"raises"})


def worlds() -> dict[str, list[World]]:
    """All of them, by what they are about."""
    from benchmarks.everyday_worlds import everyday  # it uses the functions above

    return {
        "alike": _alike(),
        "margin": _margin(),
        "effects": _effects(),
        "rare": _rare(),
        "device": _device(),
        "host": _host(),
        "runs": _runs(),
        "deaths": _deaths(),
        "event": _event(),
        "drift": _drift(),
        "exchange": _exchange(),
        "starts": _starts(),
        **everyday(),
    }


def _alike() -> list[World]:
    found = []
    for rate in (0.02, 0.1, 0.3, 0.5, 0.9):
        truth, fates = Truth((rate,) * 8), acting(rate, rate, 8)[1]
        found.append(World(f"8 cells alike, {rate:.0%}, 20 trials", truth, on_one_host(8, 20), fates))
    for rate in (0.1, 0.5):
        truth, fates = Truth((rate,) * 4), acting(rate, rate, 4)[1]
        found.append(World(f"4 cells alike, {rate:.0%}, until decided", truth, on_one_host(4, 100), fates, True))
    return found


def _margin() -> list[World]:
    """A change of the rate by as much as the margin is an effect."""
    found = []
    for base, cell in ((0.05, 0.075), (0.1, 0.15), (0.3, 0.4), (0.9, 0.8)):
        truth, fates = acting(base, cell, 2)
        name = f"{base:.0%} -> {100 * cell:g} %"
        found.append(World(f"{name}, 200 trials", truth, on_one_host(2, 200), fates))
    return found


def acting(base: float, cell: float, cells: int) -> tuple[Truth, Fates]:
    """The first cell after the baseline acts; the others do nothing."""
    rates = (base, cell, *[base] * (cells - 2))
    truth = Truth(rates, {1: LOWERS if cell < base else RAISES})
    return truth, by_chance(lambda spot: rates[spot.cell])


def _effects() -> list[World]:
    found = []
    for base, cell in ((0.9, 0.0), (0.5, 0.0), (0.5, 0.2), (0.1, 0.5)):
        truth, fates = acting(base, cell, 4)
        name = f"{base:.0%} -> {cell:.0%}"
        found += [
            World(f"{name}, 20 trials", truth, on_one_host(4, 20), fates),
            World(f"{name}, until decided", truth, on_one_host(4, 120), fates, until_decided=True),
        ]
    return found


def _rare() -> list[World]:
    found = []
    for base in (0.01, 0.02, 0.03, 0.05):
        for cell in (0.0, 2 * base):
            name = f"rare: {base:.0%} -> {cell:.0%}"
            truth, fates = acting(base, cell, 3)
            found.append(World(f"{name}, 150 trials", truth, on_one_host(3, 150), fates))
            truth, fates = acting(base, cell, 2)
            found.append(World(f"{name}, until decided", truth, on_one_host(2, 400), fates, until_decided=True))
    return found


def _device() -> list[World]:
    def bad(good: float) -> Fates:
        return by_chance(lambda spot: 0.75 if spot.place.devices == (0,) else good)

    culprit = r"(?:GPU|device|slot)s? 0\b"
    found = []
    for cells in (2, 4):
        truth = Truth((0.375,) * cells, culprit=culprit)
        found += [
            World(f"bad device, {cells} cells, balanced", truth, on_devices(cells, 20, 2), bad(0.0)),
            World(f"bad device, {cells} cells, first free", truth, on_devices(cells, 20, 2, "free"), bad(0.0)),
            World(f"bad device, {cells} cells, coinciding", truth, on_devices(cells, 20, 2, "coinciding"), bad(0.0)),
            World(f"bad device, {cells} cells, until decided", truth, on_devices(cells, 60, 2), bad(0.0), True),
            World(
                f"bad device, {cells} cells, coinciding, until decided",
                truth,
                on_devices(cells, 60, 2, "coinciding"),
                bad(0.0),
                True,
            ),
        ]
    truth = Truth((0.4,) * 8, culprit=culprit)
    found.append(World("bad device of 4, 8 cells, 60 % and 20 %", truth, on_devices(8, 20, 4),
                       by_chance(lambda spot: 0.8 if spot.place.devices == (0,) else 0.15)))  # fmt: skip
    cures = Truth((0.45, 0.0, 0.45, 0.45), {1: LOWERS}, culprit=culprit)
    found.append(World("bad device, one cell cures it", cures, on_devices(4, 20, 2), by_chance(
        lambda spot: 0.9 if spot.place.devices == (0,) and spot.cell != 1 else 0.0),
        oracle=lambda spot: spot.place.devices == (0,)))  # fmt: skip
    return found


def _host() -> list[World]:
    def bad(spot: Spot) -> float:
        return 0.8 if spot.place.host == "node_1" else 0.05

    culprit = r"node_1\b"
    truth = Truth((0.425, 0.425), culprit=culprit)
    of_four = Truth((0.24,) * 4, culprit=culprit)
    return [
        World("bad host of 2, jobs across 2 cells", truth, on_nodes(2, 20, 2, 5), by_chance(bad)),
        World("bad host of 2, jobs of one cell", truth, on_nodes(2, 20, 2, 20, across=False), by_chance(bad)),
        World("bad host of 4, jobs across 4 cells", of_four, on_nodes(4, 20, 4, 4), by_chance(bad)),
        World("bad host of 4, jobs of one cell", of_four, on_nodes(4, 20, 4, 5, across=False), by_chance(bad)),
        World("bad host of 2, until decided", truth, on_nodes(2, 60, 2, 5), by_chance(bad), True),
    ]


def _runs() -> list[World]:
    found = []
    for rate in (0.3, 0.5):
        for per_cell, name in ((True, "of each cell"), (False, "over the run")):
            truth = Truth((rate,) * 4, in_runs=True)
            fates = in_runs(rate, 5, per_cell=per_cell)
            found += [
                World(f"runs of 5 {name}, {rate:.0%}, 20 trials", truth, on_one_host(4, 20), fates),
                World(f"runs of 5 {name}, {rate:.0%}, 40 trials", truth, on_one_host(4, 40), fates),
                World(f"runs of 5 {name}, {rate:.0%}, until decided", truth, on_one_host(4, 80), fates, True),
            ]
    return found


def _deaths() -> list[World]:
    rates = (0.7, 0.7)
    cured = (0.7, 0.0)
    return [
        World("early deaths hide all failures of a cell", Truth(rates), on_one_host(2, 20), dying_early(0.7, 1, 1.0)),
        World("early deaths hide most failures of a cell", Truth(rates), on_one_host(2, 20), dying_early(0.7, 1, 0.8)),
        World("the same, until decided", Truth(rates), on_one_host(2, 60), dying_early(0.7, 1, 1.0), True),
        World("the baseline dies early", Truth((0.7,) * 4), on_one_host(4, 20), dying_early(0.7, 0, 1.0)),
        World("one in five of all dies early, one cell cures", Truth(cured, {1: LOWERS}), on_one_host(2, 20),
              two_ways(lambda spot: (0.2, cured[spot.cell]), ("died early", "nan"))),
    ]  # fmt: skip


def _event() -> list[World]:
    return [
        World(f"one event, {cells} cells, {rate:.0%}", Truth((rate,) * cells), on_one_host(cells, 10),
              one_event(rate))
        for cells in (2, 4) for rate in (0.0, 0.3)
    ]  # fmt: skip


def _drift() -> list[World]:
    truth = Truth((0.35,) * 4, changes=True)
    return [
        World("drift 10 % to 60 %", truth, on_one_host(4, 20), drifting(0.1, 0.6)),
        World("drift 10 % to 60 %, until decided", truth, on_one_host(4, 60), drifting(0.1, 0.6), True),
        World("drift 0 to 90 %, cell after cell", truth, on_one_host(4, 20, "cell after cell"), drifting(0.0, 0.9)),
    ]


def _exchange() -> list[World]:
    exchanged = Truth((0.75, 0.75), {1: frozenset({"exchanges"})},
                      {(1, "nan"): LOWERS, (1, "timeout"): RAISES})  # fmt: skip
    swapped = two_ways(lambda spot: (0.75, 0.0) if spot.cell == 0 else (0.0, 0.75), ("nan", "hang"))
    # The bug that is uncovered was there before.
    uncovered = Truth((0.9, 0.5), {1: LOWERS}, {(1, "SIGSEGV"): frozenset()})
    uncovering = two_ways(lambda spot: (0.8 if spot.cell == 0 else 0.0, 0.5), ("nan", "crash"))
    return [
        World("exchange of nan for a hang", exchanged, on_one_host(2, 20), swapped, oracle=None),
        World("exchange, until decided", exchanged, on_one_host(2, 80), swapped, True, oracle=None),
        World("a second bug uncovered", uncovered, on_one_host(2, 20), uncovering),
        World("a second bug uncovered, 60 trials", uncovered, on_one_host(2, 60), uncovering),
    ]


def _starts() -> list[World]:
    found = []
    for cells, trials, starts, even, follows in (
        (2, 40, 1, True, 1.0),
        (3, 40, 5, True, 1.0),
        (4, 60, 12, False, 1.0),
        (2, 20, 3, True, 0.95),
        (2, 60, 8, False, 0.7),
        (4, 40, 5, True, 0.7),
        (3, 60, 5, False, 0.45),
        (2, 40, 1, True, 0.45),
    ):
        name = f"{cells} cells, {trials} trials of {starts} start{'s' * (starts > 1)}, correlation {follows**2:.1f}"
        truth, fates = Truth((0.5,) * cells, in_starts=True), alike((0.5,) * cells, follows)
        found.append(World(name, truth, in_starts(cells, trials, starts, even=even), fates, oracle=None))
    truth = Truth((0.5,) * 3, in_starts=True)
    found.append(World("3 cells alike, 60 trials of 12 starts, correlation 1.0, until decided", truth,
                       in_starts(3, 60, 12), alike((0.5,) * 3, 1.0), True, oracle=None))  # fmt: skip
    cure = Truth((0.5, 0.0), {1: LOWERS}, in_starts=True)
    found.append(World("cure of 50 %, 60 trials of 12 starts, correlation 1.0", cure, in_starts(2, 60, 12),
                       alike((0.5, 0.0), 1.0), oracle=None))  # fmt: skip
    cure, fates = acting(0.4, 0.0, 2)
    found.append(World("cure of 40 %, 40 trials of 5 starts, independent", cure, in_starts(2, 40, 5), fates))
    found.append(World("the same, until decided", cure, in_starts(2, 120, 12), fates, True))
    independent = Truth((0.4,) * 3)
    found.append(World("3 cells alike, 40 trials of 5 starts, independent", independent, in_starts(3, 40, 5),
                       by_chance(lambda spot: 0.4)))  # fmt: skip
    commands = Truth((0.5,) * 3, by_hash=True)
    found.append(World("3 cells alike, 40 commands, the hash seed decides", commands, in_starts(3, 40, 0),
                       by_hash((0.5,) * 3)))  # fmt: skip
    found.append(World("3 cells alike, 40 commands, independent", Truth((0.5,) * 3), in_starts(3, 40, 0),
                       by_chance(lambda spot: 0.5)))  # fmt: skip
    classes = Truth((0.5,) * 3, by_hash=True, in_starts=True)
    found.append(World("3 cells alike, 60 trials of 12 starts, the hash seed decides", classes, in_starts(3, 60, 12),
                       by_hash((0.5,) * 3)))  # fmt: skip
    return found
