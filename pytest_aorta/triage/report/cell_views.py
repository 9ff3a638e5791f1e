"""Cells and signatures as the page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_aorta.triage.facts import OUTCOMES, CellKey, TrialFacts
from pytest_aorta.triage.failures.signatures import Signature
from pytest_aorta.triage.report.material import Material
from pytest_aorta.triage.report.safe_text import one_line
from pytest_aorta.triage.report.trial_views import anchor_of
from pytest_aorta.triage.table import Row, Table
from pytest_aorta.triage.verdicts import Comparison, Verdict
from pytest_aorta.triage.wording import below

#: Links to trials in one place; a filter shows all.
_MOST_LINKS = 24


@dataclass(frozen=True)
class VerdictView:
    """A verdict: its kind, and below it what makes it precise."""

    kind: str
    note: str

    @property
    def css(self) -> str:
        """Name of its class."""
        return self.kind.replace(" ", "-")


@dataclass(frozen=True)
class SignatureRow:
    """A way to fail within a cell."""

    id: str
    text: str
    failures: int
    base_failures: int | None = None
    verdict: VerdictView | None = None
    comparison: Comparison | None = None


@dataclass(frozen=True)
class CellView:
    """A row of the table of verdicts.

    Attributes:
        label: unique on the page.
        row: what was concluded.
        counts: outcomes that there are, with their numbers.
        verdict: on the cell.
        signatures: ways to fail, of the cell or of its baseline where there are several.
    """

    label: str
    row: Row
    counts: tuple[tuple[str, int], ...]
    verdict: VerdictView
    signatures: tuple[SignatureRow, ...]


@dataclass(frozen=True)
class TrialLinks:
    """Trials of a cell: number and anchor of the first ones, and how many more there are."""

    label: str
    total: int
    links: tuple[tuple[int, str], ...]

    @property
    def more(self) -> int:
        """How many are not among the links."""
        return self.total - len(self.links)


@dataclass(frozen=True)
class SignatureView:
    """A way to fail, over all cells."""

    id: str
    text: str
    kind: str
    total: int
    cells: tuple[TrialLinks, ...]


def cell_views(table: Table, labels: Mapping[CellKey, str], ids: Mapping[Signature, str]) -> list[CellView]:
    """All cells, in the order of the table."""
    return [
        CellView(
            label=labels[row.cell.key],
            row=row,
            counts=tuple((outcome, row.cell.count(outcome)) for outcome in OUTCOMES if row.cell.count(outcome)),
            verdict=verdict_view(row.verdict),
            signatures=_signature_rows(row, ids),
        )
        for row in table.rows
    ]


def verdict_view(verdict: Verdict) -> VerdictView:
    """Its text in two parts."""
    if verdict.reason:
        note = one_line(verdict.reason)
    elif verdict.rate_below is not None:
        note = f"rate below {below(verdict.rate_below)}"
    elif verdict.more_trials is not None:
        note = f"about {verdict.more_trials:,} more trials"
    else:
        note = ""
    return VerdictView(verdict.kind, note)


def _signature_rows(row: Row, ids: Mapping[Signature, str]) -> tuple[SignatureRow, ...]:
    if row.by_signature:
        return tuple(
            SignatureRow(
                ids.get(each.signature, ""),
                one_line(each.signature.text),
                each.failures,
                each.base_failures,
                verdict_view(each.verdict),
                each.comparison,
            )
            for each in row.by_signature
        )
    return tuple(
        SignatureRow(ids.get(each.signature, ""), one_line(each.signature.text), len(each.trials))
        for each in row.cell.signatures
    )


def signature_views(
    material: Material, labels: Mapping[CellKey, str], ids: Mapping[Signature, str]
) -> list[SignatureView]:
    """All ways to fail, the most frequent first."""
    found: dict[Signature, dict[CellKey, list[TrialFacts]]] = {}
    for facts in material.trials:
        if facts.signature is not None:
            found.setdefault(facts.signature, {}).setdefault(facts.key, []).append(facts)
    views = [
        SignatureView(
            ids[signature],
            one_line(signature.text),
            one_line(_kind(signature)),
            sum(map(len, cells.values())),
            tuple(_links(label, cells[key]) for key, label in labels.items() if key in cells),
        )
        for signature, cells in found.items()
    ]
    return sorted(views, key=lambda view: -view.total)


def _kind(signature: Signature) -> str:
    """``exception in run, FloatingPointError, rank 0``."""
    kind = f"{signature.kind} in {signature.phase}".replace("_", " ")
    return ", ".join(filter(None, (kind, signature.type, signature.role)))


def _links(label: str, trials: Sequence[TrialFacts]) -> TrialLinks:
    by_index = sorted(trials, key=lambda facts: facts.index)[:_MOST_LINKS]
    return TrialLinks(label, len(trials), tuple((facts.index, anchor_of(facts)) for facts in by_index))
