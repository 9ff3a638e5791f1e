"""Trials as the page shows them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from pytest_aorta.triage.facts import CellKey, Outcome, TrialFacts
from pytest_aorta.triage.report.evidence import Evidence, replay_command, tails
from pytest_aorta.triage.report.material import Material
from pytest_aorta.triage.report.safe_text import inside, one_line
from pytest_aorta.triage.report.stored_texts import ShownText, StoredTexts

#: Trials whose evidence is shown; of more, only their rows.
MOST_DETAILS = 2_000


@dataclass(frozen=True)
class TextView:
    """A long text under a heading; ``path`` of the file that has all of it, relative to the results directory."""

    heading: str
    path: str
    shown: ShownText


@dataclass(frozen=True)
class FileLink:
    """A file of a trial: its path beside the trial file, and relative to the page; empty for one that is elsewhere."""

    path: str
    href: str


@dataclass(frozen=True)
class Detail:
    """All about a trial that is not ok."""

    evidence: Evidence
    texts: tuple[TextView, ...]
    files: tuple[FileLink, ...]
    command: str


@dataclass(frozen=True)
class TrialView:
    """A row of the table of trials.

    Attributes:
        anchor: id of the row, the path of its file without the suffix.
        cell: label.
        order: position in the run, from 1.
        signature: id of that of its failure; empty for none.
        headline: first line of its message; empty for a trial that is ok.
        detail: ``None`` for a trial that is ok, and beyond the bound.
    """

    anchor: str
    cell: str
    facts: TrialFacts
    order: int
    signature: str = ""
    headline: str = ""
    detail: Detail | None = None

    @property
    def outcome(self) -> Outcome:
        """For the filter."""
        return self.facts.outcome

    @property
    def started(self) -> str:
        """To the second, without its zone: all are in UTC."""
        return one_line(self.facts.started_at[:19].replace("T", " "))

    @property
    def step_ms(self) -> float | None:
        """Median of its steps."""
        return None if self.facts.steps is None else self.facts.steps.median_ms


def anchor_of(facts: TrialFacts) -> str:
    """Id of the row of a trial: readable, and valid in a fragment as it stands."""
    return quote(str(PurePosixPath(facts.file).with_suffix("")), safe="/@+.~-_", errors="replace")


def trial_views(
    material: Material,
    labels: Mapping[CellKey, str],
    signatures: Mapping[str, str],
    output: Path,
    shown_results: str,
) -> list[TrialView]:
    """All trials in run order.

    Args:
        material: with the trials.
        labels: of the cells.
        signatures: id of the signature of each file.
        output: where the page will be, for links.
        shown_results: the directory, as it is typed in commands.
    """
    results = material.folder
    important = _by_importance(material.trials, signatures)[:MOST_DETAILS]
    stored = StoredTexts()
    texts: dict[str, list[tuple[str, str, str]]] = {}
    for facts in important:
        texts[facts.file] = found = _texts(material.evidence[facts.file], facts.file, results)
        stored.admit(text for _, _, text in found)
    views = []
    for order, facts in enumerate(material.trials, 1):
        evidence = material.evidence.get(facts.file)
        detail = None
        if evidence is not None and facts.file in texts:
            shown = tuple(TextView(head, path, stored.show(text)) for head, path, text in texts[facts.file])
            folder = PurePosixPath(facts.file).parent
            files = tuple(
                FileLink(one_line(str(_beside(path, folder))), link_to(path, results, output))
                for path in (facts.file, *evidence.artifacts.values())
            )
            command = replay_command(shown_results, facts.file) if evidence.can_replay else ""
            detail = Detail(evidence, shown, files, one_line(command, 2_000))
        views.append(
            TrialView(
                anchor_of(facts),
                labels[facts.key],
                facts,
                order,
                signatures.get(facts.file, ""),
                "" if evidence is None else evidence.headline,
                detail,
            )
        )
    return views


def _beside(path: str, folder: PurePosixPath) -> PurePosixPath:
    """A path relative to a folder, if it lies below."""
    found = PurePosixPath(path)
    return found.relative_to(folder) if found.is_relative_to(folder) else found


def _by_importance(trials: Sequence[TrialFacts], signatures: Mapping[str, str]) -> list[TrialFacts]:
    """Those that are not ok: the first of each cell and signature, then the second of each, ..."""
    groups: dict[tuple[CellKey, str], list[TrialFacts]] = {}
    for facts in trials:
        if facts.outcome != "ok":
            groups.setdefault((facts.key, signatures.get(facts.file, "")), []).append(facts)
    return [facts for same in zip_longest(*groups.values()) for facts in same if facts is not None]


def _texts(evidence: Evidence, file: str, results: Path) -> list[tuple[str, str, str]]:
    """Heading, path of the file and text."""
    of_record = (
        ("message", evidence.message),
        ("details", evidence.details),
        ("variables that were set", evidence.variables),
        ("traceback", evidence.traceback),
    )
    found = [(heading, file, text) for heading, text in of_record if text]
    found += [(f"end of {name}", path, tail) for name, path, tail in tails(evidence, results)]
    return [(one_line(heading), one_line(path), text) for heading, path, text in found]


def link_to(relative: str, results: Path, output: Path) -> str:
    """A link from the page to a file below the results directory; empty for what leads out of it."""
    path = inside(results, relative)
    if path is None:
        return ""
    shown = Path(os.path.relpath(path, output.parent.resolve()))
    return quote(f"./{shown.as_posix()}", errors="replace")
