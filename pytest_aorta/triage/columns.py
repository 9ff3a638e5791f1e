"""The texts of a table: formatted numbers, the columns for all formats, and the concluding sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from typing import Any, Generic, Literal, TypeVar

from pytest_aorta.common.texts import counted, join_names
from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.cells import CellStatistics
from pytest_aorta.triage.draws import processes
from pytest_aorta.triage.factorial import Factorial
from pytest_aorta.triage.facts import OUTCOMES, CellKey
from pytest_aorta.triage.judging import LEVEL, Verdict, VerdictKind
from pytest_aorta.triage.power import power_sentence
from pytest_aorta.triage.rates import Interval
from pytest_aorta.triage.verdicts import Row, Table
from pytest_aorta.triage.where import node_sentences

#: Smaller rates are shown with a decimal.
_SMALL = 0.1

#: Smaller p values are shown as ``<0.0001``.
_SMALLEST_P = 0.0001

#: Names in one sentence, at most.
_MOST_NAMES = 3


def below(rate: float) -> str:
    """Format an upper bound, rounded up so that it still holds: ``14%``, ``1.5%``."""
    step, decimals = (0.001, 1) if rate < _SMALL else (0.01, 0)
    return f"{min(1.0, -(-(rate - 1e-9) // step) * step):.{decimals}%}"


def bound_text(rate: float, start_rate: float | None = None, starts: int = 0) -> str:
    """Bounds of a cell without failures: ``below 1.8%; below 26% for what a process draws once (10 processes)``."""
    if start_rate is None:
        return f"below {below(rate)}"
    return f"below {below(rate)}; below {below(start_rate)} for what a process draws once ({processes(starts)})"


def _bound(row: Row) -> str:
    return "" if row.rate_below is None else bound_text(row.rate_below, row.start_rate_below, len(row.cell.starts))


def rate_with_interval(rate: float | None, interval: Interval) -> str:
    """``70% (48-85%)``; ``-`` without a rate."""
    if rate is None:
        return "-"
    decimals = 1 if interval.high < _SMALL else 0
    return f"{rate:.{decimals}%} ({100 * interval.low:.{decimals}f}-{interval.high:.{decimals}%})"


def difference_with_interval(difference: float, interval: Interval) -> str:
    """In percentage points: ``-70 (-85 to -42)``."""
    return f"{100 * difference:+.0f} ({100 * interval.low:+.0f} to {100 * interval.high:+.0f})"


def p_value(p: float) -> str:
    """Two significant digits: ``0.023``; ``<0.0001``."""
    if p < _SMALLEST_P:
        return f"<{_SMALLEST_P}"
    return f"{p:.4f}" if p < 0.001 else f"{p:.2g}"


def step_ms(milliseconds: float | None) -> str:
    """``22.10``; ``-`` without a time."""
    return "-" if milliseconds is None else f"{milliseconds:.2f}"


def verdict_note(verdict: Verdict) -> str:
    """Details of a verdict besides its word; may be empty."""
    if verdict.more_trials is not None:
        return f"about {verdict.more_trials:,} more trials"
    return verdict.reason or verdict.of.strip("()")


def json_data(value: Any) -> Any:
    """Convert to strict JSON data: a dataclass to its fields and public properties, NaN and infinity to ``None``."""
    if is_dataclass(value):
        kind: Any = type(value)
        return {name: json_data(getattr(value, name)) for name in _keys(kind)}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: json_data(each) for name, each in value.items()}
    return [json_data(each) for each in value] if isinstance(value, tuple | list) else value


@cache
def _keys(kind: type) -> tuple[str, ...]:
    public = [name for name, value in vars(kind).items() if isinstance(value, property) and name[0] != "_"]
    return *(each.name for each in fields(kind)), *public


#: Rows of a table.
T = TypeVar("T")


@dataclass(frozen=True)
class Column(Generic[T]):
    """One fact about a cell, for all formats.

    Attributes:
        key: in matrix.json; empty if another key says it.
        title: for people; empty for facts that only programs read.
        text: the value as text by default; empty or ``-`` if there is nothing to say.
        short: the text for a terminal, if it differs.
        formats: formats that show it to people.
        always: show it even if no row has anything to say.
    """

    key: str
    value: Callable[[T], Any]
    title: str = ""
    text: Callable[[T], str] | None = None
    short: Callable[[T], str] | None = None
    formats: tuple[Literal["terminal", "markdown", "html"], ...] = ()
    always: bool = False
    left: bool = False

    def text_of(self, row: T) -> str:
        """For Markdown and HTML."""
        return str(self.value(row)) if self.text is None else self.text(row)

    def short_text_of(self, row: T) -> str:
        """For a terminal."""
        return self.text_of(row) if self.short is None else self.short(row)

    def says_something(self, rows: Sequence[T]) -> bool:
        """Whether a table of these rows shows it."""
        return self.always or any(self.text_of(row) not in ("", "-") for row in rows)


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    return str(numbers[0]) if numbers[0] == numbers[-1] else f"{numbers[0]}-{numbers[-1]}"


def _short_bound(row: Row, rate: float) -> str:
    starts = "" if row.start_rate_below is None else f", starts <{below(row.start_rate_below)}"
    return f"<{below(rate)}{starts}"


def _verdict(row: Row) -> str:
    if not row.has_verdict and row.verdict.kind == "undecided":
        return ""
    return f"{row.verdict.text}: {row.verdict.reason}" if row.verdict.reason else row.verdict.text


def _top_failure(row: Row) -> str:
    if not row.cell.signatures:
        return ""
    first, *others = row.cell.signatures
    more = sum(len(each.trials) for each in others)
    return f"{len(first.trials)}x {first.signature.text}" + (f" (and {more} others)" if more else "")


def _top_warning(row: Row) -> str:
    text, number = max(row.cell.tally("warnings").items(), key=lambda item: item[1], default=("", 0))
    return f"{number}x {text}" if number else ""


def _operators(row: Row) -> str:
    """The most expensive operators."""
    more = [f"{len(row.operators) - _MOST_NAMES} more"] if len(row.operators) > _MOST_NAMES else []
    return "; ".join([*(change.text for change in row.operators[:_MOST_NAMES]), *more])


def _step_ms(name: str, row: Row) -> str:
    return step_ms(None if row.cell.steps is None else getattr(row.cell.steps, name))


_EVERYWHERE: Any = ("terminal", "markdown", "html")
_WHERE_WIDE: Any = ("markdown", "html")
_name = partial(Column[Row], formats=("markdown",), left=True)

#: All facts about a cell, in the order of matrix.json and matrix.md.
COLUMNS: tuple[Column[Row], ...] = (
    _name("workload", lambda row: row.cell.key.workload, "Workload", always=True),
    _name("test", lambda row: row.cell.key.test, "Test"),
    _name("cell", lambda row: row.cell.key.cell, "Cell", always=True, formats=_WHERE_WIDE),
    Column("mitigations", lambda row: row.cell.mitigations, "Mitigations",
           lambda row: ", ".join(row.cell.mitigations), formats=("markdown",), always=True, left=True),
    _name("environment", lambda row: row.cell.environment, "Environment", always=True),
    _name("options", lambda row: row.cell.key.options, "Config"),
    Column("digest", lambda row: row.cell.key.digest),
    Column("planned", lambda row: row.planned),
    Column("seen", lambda row: row.cell.total, "Seen",
           lambda row: f"{row.cell.total} of {row.planned}" if row.planned not in (None, row.cell.total) else "",
           formats=("markdown",)),
    Column("failures", lambda row: row.cell.failures, "Failed",
           lambda row: f"{row.cell.failures} of {row.cell.counted}" if row.cell.counted else "-",
           formats=_EVERYWHERE, always=True),
    Column("counted", lambda row: row.cell.counted),
    Column("failure_rate", lambda row: row.cell.rate, "Rate (95%)",
           lambda row: f"0% ({_short_bound(row, row.rate_below)})" if row.rate_below is not None
           else rate_with_interval(row.cell.rate, row.cell.rate_interval), formats=_EVERYWHERE, always=True),
    Column("failure_rate_interval", lambda row: row.cell.rate_interval),
    Column("rate_below", lambda row: row.rate_below),
    Column("start_rate_below", lambda row: row.start_rate_below),
    Column("starts", lambda row: row.cell.shared_starts, "From",
           lambda row: counted(row.cell.shared_starts, "start") if row.cell.shared_starts else "",
           formats=_EVERYWHERE),
    # Not in matrix.json, which has all outcomes in one place.
    Column("", lambda row: row.cell.count("timeout") or "", "Timeouts", formats=("markdown",)),
    Column("", lambda row: row.cell.count("infrastructure") or "", "Infrastructure", formats=("markdown",)),
    Column("", lambda row: row.cell.count("interrupted") or "", "Interrupted", formats=("markdown",)),
    Column("", lambda row: row.cell.count("in doubt") or "", "In doubt", formats=("markdown",)),
    Column("", lambda row: row.cell.count("did not run") or "", "Did not run", formats=("markdown",)),
    Column("error_rate", lambda row: row.cell.count("infrastructure", "did not run") / row.cell.total
           if row.cell.total else None),
    Column("outcome_counts", lambda row: {each: row.cell.count(each) for each in OUTCOMES}),
    Column("exit_status_counts", lambda row: row.cell.tally("exit_status")),
    Column("trials", lambda row: row.cell.trials),
    Column("trial_files", lambda row: row.cell.files),
    Column("verdict", lambda row: row.verdict, "Verdict", _verdict,
           lambda row: row.verdict.text if row.verdict.more_trials is None
           else f"undecided (~{row.verdict.more_trials} more)", _EVERYWHERE, left=True),
    Column("", lambda row: row.comparison and row.comparison.difference, "Difference (points)",
           lambda row: difference_with_interval(row.comparison.difference, row.comparison.interval)
           if row.comparison else "", formats=_WHERE_WIDE),
    Column("comparison", lambda row: row.comparison, "p",
           lambda row: p_value(row.comparison.p_adjusted) if row.comparison and not row.is_on_speed else "",
           formats=_EVERYWHERE),
    Column("by_signature", lambda row: row.by_signature),
    Column("effect", lambda row: row.effect, "Inert?",
           lambda row: f"inert? ({row.effect.reason})" if row.effect and row.effect.is_inert else "",
           formats=("markdown",), left=True),
    Column("speed", lambda row: row.speed, "Speed",
           lambda row: row.speed.text if row.speed else "", formats=_EVERYWHERE, left=True),
    Column("operators", lambda row: row.operators, "Operators", _operators, formats=_WHERE_WIDE, left=True),
    Column("signatures", lambda row: row.cell.signatures, "Top failure", _top_failure,
           formats=("markdown",), left=True),
    Column("detected", lambda row: row.cell.tally("detected"), "Output says",
           lambda row: ", ".join(f"{name} {number}" for name, number in row.cell.tally("detected").items()),
           formats=_EVERYWHERE, left=True),
    Column("losses", lambda row: row.cell.losses),
    Column("collected", lambda row: row.cell.tally("collected")),
    Column("not_collected", lambda row: row.cell.tally("not_collected")),
    Column("warnings", lambda row: row.cell.tally("warnings"), "Top warning", _top_warning,
           formats=("markdown",), left=True),
    Column("first_failure_iterations", lambda row: row.cell.first_failure_iterations, "First failure",
           lambda row: _range(row.cell.first_failure_iterations), formats=("markdown",)),
    Column("iterations", lambda row: row.cell.iterations, "Iters",
           lambda row: _range(row.cell.iterations) or "-", formats=("markdown",)),
    Column("step_times", lambda row: row.cell.steps, "Step ms",
           partial(_step_ms, "median_ms"), formats=_EVERYWHERE),
    Column("", lambda row: row.cell.steps and row.cell.steps.p90_ms, "p90",
           partial(_step_ms, "p90_ms"), formats=("html",)),
    Column("", lambda row: row.cell.steps and row.cell.steps.p99_ms, "p99",
           partial(_step_ms, "p99_ms"), formats=("html",)),
    Column("median_wall_sec", lambda row: row.cell.median_wall_sec),
    Column("resolved_variables", lambda row: {name: [value] for name, value in row.cell.variables.resolved}),
)  # fmt: skip

#: The meaning of each verdict, the most important first.
MEANINGS: Mapping[VerdictKind, str] = {
    "worse": "fails more often than the baseline",
    "error": "no trial says anything about the workload",
    "did not run": "no trial has come to its main work",
    "fixes": "fails less often than the baseline, and no failure was seen",
    "reduces": "fails less often than the baseline",
    "exchanges": "one way to fail has replaced another",
    "leaves": "it removes one way to fail, but fails in another one, which the first may have hidden",
    "slower": "nothing has failed, and it takes longer than the baseline",
    "faster": "nothing has failed, and it takes less time than the baseline",
    "confounded": "it ran elsewhere, at another time or at other clocks, which may make the difference",
    "baseline": "the cell that others are compared with",
    "similar": "nothing has failed, and it takes as long as the baseline",
    "second baseline": "its variables have the same values without it: its trials are more trials of the baseline",
    "not read": "no library or source that its trials have loaded names its variables",
    "undecided": "too few trials to tell",
    "no cure": "it leaves more than half of the failures; in brackets its rate in relation to the baseline's (99%)",
}


#: Verdicts that do not say which variable acts.
_OPEN: tuple[VerdictKind, ...] = ("undecided", "no cure", "not read")


def conclusions(table: Table) -> list[str]:
    """The sentences that sum up a table: one for each group of compared cells, none for a cell on its own."""
    groups: dict[CellKey, list[Row]] = {}
    for row in table.rows:
        if row.comparison is not None:
            groups.setdefault(row.comparison.baseline, []).append(row)
    several = len({(key.workload, key.test, key.options) for key in groups}) > 1
    gathered = (table.associations.bad_place, table.associations.start)
    said = [f"{each.sentence}." for each in gathered if each is not None]
    said += node_sentences(table.nodes)
    told: list[Factorial] = []
    for key, rows in groups.items():
        base, most = table.row(key).cell, table.row(key).rate_below
        speeds = _speeds(rows, base)
        if most is not None and all(row.rate_below is not None for row in rows if row.cell.counted):
            sentences = [*speeds, _no_failure(base, _bound(table.row(key)))]
        else:
            sentences = [_sentence(rows, base, table.settings), *speeds]
        factorial = next((each for each in table.factorials if key in each.cells), None)
        if factorial is not None and factorial.acts:
            # Comparisons of each combination with the first say less.
            sentences = [*speeds]
        if factorial is not None and (factorial.acts or all(row.verdict.kind in _OPEN for row in rows)):
            sentences = [*factorial.sentences * (factorial not in told), *sentences]
            told.append(factorial)
        if not sentences:
            continue
        sentence = " ".join(sentences)
        group = " ".join(filter(None, (key.test, key.workload, key.options)))
        said.append(f"{group}: {sentence}" if several else sentence)
    return said


def _sentence(rows: Sequence[Row], base: CellStatistics, settings: TriageSettings) -> str:
    def best(kind: VerdictKind) -> list[Row]:
        alike = [row for row in rows if row.verdict.kind == kind]
        return sorted(alike, key=lambda row: (row.is_slower, row.p, row.cell.rate or 0.0))

    def names(rows: Sequence[Row]) -> str:
        return _names([_mitigation(row, base) for row in rows])

    kinds: tuple[VerdictKind, ...] = ("fixes", "reduces", "exchanges", "leaves", "worse")
    does: Mapping[VerdictKind, str] = {"fixes": "fixes it", "reduces": "makes it rarer", "worse": "makes it worse"}
    for kind in kinds:
        if not (alike := best(kind)):
            continue
        first = alike[0]
        evidence = _evidence(first, base) if kind != "exchanges" else _describe_ways(first, base)
        text = f"{_mitigation(first, base)} {does.get(kind, first.verdict.text)}: {evidence}"
        if kind == "leaves":
            text = f"{_mitigation(first, base)} fixes one way to fail: {_describe_ways(first, base)}"
        elif kind in ("fixes", "reduces") and any(way.hidden for way in first.by_signature):
            text += f"; {_describe_ways(first, base)}"
        # Say how much a cure removes at least, and how much may be left.
        bounds = [f"it removes at least {first.verdict.removes:.0%} of the failures"] if first.verdict.removes else []
        bounds += [f"its failure rate is {_bound(first)}"] if first.rate_below is not None else []
        if bounds and kind in ("fixes", "reduces"):
            text += "; " + ", and ".join(bounds)
        if kind == "fixes" and len(alike) > 1:
            text += f". So {'does' if len(alike) == 2 else 'do'} {names(alike[1:])}"
        if kind == "fixes" and first.is_slower:
            text += ". A fault of timing can hide in slower steps"
        return f"{text}."
    if confounded := [row for row in best("confounded") if not (row.speed and row.speed.held_back)]:
        first = confounded[0]
        what = first.verdict.of.removeprefix("with ")
        both = "by turns would decide (--aorta-order interleaved)" if what == "time" else f"on one {what} would decide"
        return (
            f"{_mitigation(first, base)} is {first.verdict.text}: {_evidence(first, base)}, but "
            f"{first.verdict.reason}, so that the {what} may make the difference. Trials of both {both}."
        )
    if undecided := best("undecided"):
        return " ".join(filter(None, (_undecided(undecided, base), power_sentence(undecided, rows, base, settings))))
    useless = best("no cure")
    same = [row for row in useless if row.verdict.is_same]
    if likely := [row for row in useless if row.verdict.is_likely]:
        leaves = f"probably leaving more than half of the failures of {base.key.cell}"
        verb = "was" if len(likely) == 1 else "were"
        return f"No cure was found; {names(likely)} {verb} given up early, {leaves}."
    if useless and not same:
        verb = "leaves" if len(useless) == 1 else "leave"
        return f"{names(useless)} {verb} more than half of the failures of {base.key.cell}."
    if same:
        margin = settings.margin
        limits = [f"{margin.share:.0%} of it"] if margin.share < 1 else []
        limits += [f"{100 * margin.points:.3g} points"] if margin.points < 1 else []
        verb = "does" if len(same) == 1 else "do"
        change = f"not change the failure rate of {base.key.cell} by more than {' or '.join(limits)}"
        return f"{names(same)} {verb} {change}."
    if unread := best("not read"):
        return f"Nothing that is loaded names the variables of {names(unread)}, so they hardly act on {base.key.cell}."
    return f"No verdict: {base.key.cell} is there to compare with, and no other cell says anything."


def _no_failure(base: CellStatistics, bound: str) -> str:
    lost = f", but {counted(base.lost, 'trial')} of {base.total} were lost" if base.lost else ""
    sentence = (
        f"No failure: {base.key.cell} has not failed in {counted(base.counted, 'trial')}{lost}; "
        f"its failure rate is {bound}."
    )
    for name, number in base.tally("detected").items():
        sentence += f" The output of {number} says {name}: failures, if you add --aorta-fail-on=@{name}."
    return sentence


def _speeds(rows: Sequence[Row], base: CellStatistics) -> list[str]:
    """Name cells with slower and faster steps, whatever their failures.

    If the run asks for speed, also cells that are as fast, and undecided ones.
    """
    texts = []
    for row in rows:
        if row.speed is not None and row.speed.held_back:
            why = f"{row.speed.held_back}, so that the clocks may make the difference"
            texts.append(f"{_mitigation(row, base)} takes {row.speed.change}, but {why}.")
    for kind in ("slower", "faster", "similar", "undecided"):
        rows = [row for row in rows if row.speed is None or not row.speed.held_back]
        asked = rows if kind in ("slower", "faster") else [row for row in rows if row.is_on_speed]
        alike = [row for row in asked if row.speed and row.speed.kind == kind and row.verdict.kind != "second baseline"]
        if alike:
            names = _names([f"{_mitigation(row, base)} {row.speed.change}" for row in alike if row.speed])
            what = alike[0].speed.of if alike[0].speed else "steps"
            texts.append(
                f"Not known yet how long {what} take: {names}."
                if kind == "undecided"
                else f"{kind.capitalize()} {what}: {names}."
            )
            texts += [
                f"What differs most in {_mitigation(row, base)}: {row.operators[0].text}."
                for row in alike
                if row.operators
            ]
    return texts


def _undecided(rows: Sequence[Row], base: CellStatistics) -> str:
    doubted = [row for row in rows if row.verdict.reason and row.p < LEVEL]
    if doubted:
        first = doubted[0]
        return f"Undecided: {_mitigation(first, base)} differs ({_evidence(first, base)}), but {first.verdict.reason}."
    if of_starts := [row.verdict.reason for row in rows if row.verdict.is_of_starts]:
        return f"Undecided: {of_starts[0]}."
    more = [row.verdict.more_trials for row in rows if row.verdict.more_trials is not None]
    names = _names([_mitigation(row, base) for row in rows])
    text = f"Undecided: {counted(base.counted, 'trial')} of {base.key.cell} and as many of {names} are too few to tell"
    if not more:
        return f"{text}."
    number = _range([min(more), max(more)]).replace("-", " to ")
    return f"{text}; about {number} more of each cell would be enough (a larger --aorta-trials, with --aorta-resume)."


def _evidence(row: Row, base: CellStatistics) -> str:
    cell, p = row.cell, p_value(row.p)
    added = {*base.mitigations, "none"} <= {*cell.mitigations, "none"}
    without = "without it" if added else f"with {','.join(base.mitigations)}"
    numbers = f"{cell.failures} of {cell.counted} failed, {base.failures} of {base.counted} {without}"
    return f"{numbers} (p {p.replace('<', '< ') if p.startswith('<') else f'= {p}'})"


def _describe_ways(row: Row, base: CellStatistics) -> str:
    """``loss is nan in 0 of 20 (20 of 20 without it); SIGSEGV shows in 18 of 20 (it may have been hidden in ...)``."""
    texts = []
    for way in row.by_signature:
        name, cell = way.signature.short, f"{way.failures} of {row.cell.counted}"
        if way.hidden:
            texts.append(f"{name} shows in {cell} (it may have been hidden in {way.hidden} of {base.counted})")
        elif way.verdict.kind in ("fixes", "reduces", "worse"):
            texts.append(f"{name} in {cell} ({way.base_failures} of {base.counted} without it)")
    return "; ".join(texts)


def _mitigation(row: Row, base: CellStatistics) -> str:
    """The mitigation set; the whole cell if its environment is not the baseline's."""
    cell = row.cell
    return ",".join(cell.mitigations) if cell.environment == base.environment else cell.key.cell


def _names(names: Sequence[str]) -> str:
    if len(names) > _MOST_NAMES + 1:
        return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} others"
    return join_names(names)
