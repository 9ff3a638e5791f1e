"""What a table comes to, in a sentence per workload that needs no knowledge of statistics."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_aorta.triage.cells import CellStatistics
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.statistics.proportions import upper_bound
from pytest_aorta.triage.table import Row, Table
from pytest_aorta.triage.verdicts import VerdictKind
from pytest_aorta.triage.wording import below, counted, p_value, percent

#: Names in one sentence.
_MOST_NAMES = 3


def conclusions(table: Table) -> list[str]:
    """One sentence for each group of cells that are compared with each other; none for a cell on its own."""
    groups: dict[CellKey, list[Row]] = {}
    for row in table.rows:
        if row.comparison is not None:
            groups.setdefault(row.comparison.baseline, []).append(row)
    several = len({(key.workload, key.test, key.options) for key in groups}) > 1
    found = []
    for key, rows in groups.items():
        sentence = _sentence(rows, table.row(key).cell, table.settings.margin)
        group = " ".join(filter(None, (key.test, key.workload, key.options)))
        found.append(f"{group}: {sentence}" if several else sentence)
    return found


def has_verdict(row: Row) -> bool:
    """Whether the verdict says more than that there is nothing to compare with."""
    return row.comparison is not None or row.verdict.kind not in ("baseline", "undecided") or bool(row.verdict.reason)


def _sentence(rows: Sequence[Row], base: CellStatistics, margin: float) -> str:
    def best(kind: VerdictKind) -> list[Row]:
        found = [row for row in rows if row.verdict.kind == kind and row.comparison is not None]
        return sorted(found, key=lambda row: (_is_slower(row), _p(row), row.cell.rate or 0.0))

    if fixing := best("fixes"):
        return _fixes(fixing, base)
    if reducing := best("reduces"):
        return f"{_name(reducing[0], base)} makes it rarer, but does not fix it: {_evidence(reducing[0], base)}."
    if worse := best("worse"):
        return f"{_name(worse[0], base)} makes it worse: {_evidence(worse[0], base)}."
    if not base.failures:
        return (
            f"Nothing to fix: {base.key.cell} has not failed in {counted(base.counted, 'trial')}; "
            f"its failure rate is below {below(upper_bound(0, base.counted))}."
        )
    if undecided := best("undecided"):
        return _undecided(undecided, base)
    if same := best("no effect"):
        names = _names([_name(row, base) for row in same])
        verb = "does" if len(same) == 1 else "do"
        return f"{names} {verb} not change the failure rate of {base.key.cell} by more than {percent(margin)}."
    return f"No verdict: {base.key.cell} is there to compare with, and no other cell says anything."


def _fixes(rows: Sequence[Row], base: CellStatistics) -> str:
    first = rows[0]
    text = f"{_name(first, base)} fixes it: {_evidence(first, base)}"
    if first.verdict.rate_below is not None:
        text += f"; its failure rate is below {below(first.verdict.rate_below)}"
    if _is_slower(first) and first.confound is not None and first.confound.ratio is not None:
        text += f". But its steps take {first.confound.ratio:.2f} times as long, and a fault of timing can hide in that"
    if len(rows) > 1:
        names = _names([_name(row, base) + (" (slower)" if _is_slower(row) else "") for row in rows[1:]])
        text += f". So {'does' if len(rows) == 2 else 'do'} {names}"
    return f"{text}."


def _undecided(rows: Sequence[Row], base: CellStatistics) -> str:
    more = [row.verdict.more_trials for row in rows if row.verdict.more_trials is not None]
    names = _names([_name(row, base) for row in rows])
    text = f"Undecided: {counted(base.counted, 'trial')} of {base.key.cell} and as many of {names} are too few to tell"
    if not more:
        return f"{text}."
    fewest, most = min(more), max(more)
    number = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return f"{text}; about {number} more of each cell would be enough (a larger --aorta-trials, with --aorta-resume)."


def _evidence(row: Row, base: CellStatistics) -> str:
    cell, p = row.cell, p_value(_p(row))
    numbers = f"{cell.failures} of {cell.counted} failed, {base.failures} of {base.counted} without it"
    return f"{numbers} (p {p.replace('<', '< ') if p.startswith('<') else f'= {p}'})"


def _is_slower(row: Row) -> bool:
    return row.confound is not None and row.confound.kind == "speed"


def _p(row: Row) -> float:
    return row.comparison.p_adjusted if row.comparison is not None else 1.0


def _name(row: Row, base: CellStatistics) -> str:
    """The mitigation set, where the environment is the baseline's too; else the cell."""
    cell = row.cell
    return ",".join(cell.mitigations) if cell.environment == base.environment else cell.key.cell


def _names(names: Sequence[str]) -> str:
    if len(names) > _MOST_NAMES:
        return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} others"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
