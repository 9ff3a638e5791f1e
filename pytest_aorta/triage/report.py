"""A results directory as one HTML file that needs nothing else."""

from __future__ import annotations

import hashlib
import html
import importlib.util
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from pytest_aorta._version import __version__
from pytest_aorta.common.file_tail import read_tail
from pytest_aorta.common.first_names import first_names
from pytest_aorta.common.traceback_text import own_frames, without_runner
from pytest_aorta.settings import RequestError
from pytest_aorta.triage import charts
from pytest_aorta.triage.columns import below, conclusions, counted, rate_with_interval
from pytest_aorta.triage.environments import Environments, Installed, differences
from pytest_aorta.triage.facts import OUTCOMES, CellKey, Outcome, TrialFacts
from pytest_aorta.triage.reading import Results, triage_in_order
from pytest_aorta.triage.signatures import Signature
from pytest_aorta.triage.verdicts import (
    Comparison,
    Row,
    Table,
    Triage,
    TriageSettings,
    Verdict,
    check_baseline,
    choose_baselines,
)
from pytest_aorta.workspace.atomic import write_text

_NEEDED = ("jinja2", "matplotlib")


class ReportError(RequestError):
    """A report that cannot be written."""


def check_libraries() -> None:
    """Find out whether a report can be made here; imports nothing.

    Raises:
        ReportError: with the command that installs what is missing.
    """
    missing = [name for name in _NEEDED if not _is_installed(name)]
    if missing:
        raise ReportError(
            f"a report needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            "pip install 'pytest-aorta[report]'"
        )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # ``sys.modules`` has None in its place
        return False


#: Colours and movements of a terminal, which are not what was said.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

#: Runs of what is not printable, among them controls, lone surrogates and marks that turn the direction of a text.
_HIDDEN = re.compile(r"[^\n\t -~\u00a1-\u00ac\u00ae-\u02ff]")

#: Longest name, and line of a heading.
_LINE = 200

#: Lines, and bytes, that are shown of the end of a log.
TAIL_LINES = 40
TAIL_BYTES = 8_192

_CUT = "\N{HORIZONTAL ELLIPSIS}"


def plain(text: str) -> str:
    """A text of several lines that shows what is in it, and does nothing."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "\r" in text:  # a progress bar, of which a terminal shows the last state
        text = re.sub(r"[^\n]*\r(?=[^\n\r])", "", text.replace("\r\n", "\n")).replace("\r", "")
    return _HIDDEN.sub(lambda found: found[0] if found[0].isprintable() else "\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str, longest: int = _LINE) -> str:
    """A text without line breaks, cut in the middle where it is too long: names differ at their ends."""
    line = " ".join(plain(text[: 20 * longest]).split())
    if len(line) <= longest:
        return line
    return f"{line[: longest * 2 // 3]}{_CUT}{line[-(longest // 3) + 1 :]}"


def bounded(text: str, most_bytes: int = TAIL_BYTES, most_lines: int = TAIL_LINES) -> str:
    """The end of a text, with a first line that says how much is left out."""
    lines = plain(text).rstrip().split("\n")
    kept = "\n".join(lines[-most_lines:])
    kept = kept.encode()[-most_bytes:].decode(errors="ignore")
    cut = len("\n".join(lines)) - len(kept)
    return f"[{_CUT} {cut:,} characters before]\n{kept}" if cut > 0 else kept


def log_tail(path: Path) -> str:
    """The last lines of a log; empty where there are none."""
    if not os.path.isfile(path):  # to open a pipe would wait for its writer
        return ""
    lines = without_runner(plain(read_tail(path, TAIL_BYTES)).rstrip().split("\n"))
    kept = "\n".join(lines[-TAIL_LINES:])
    before = path.stat().st_size - len(kept.encode())
    is_cut = len(lines) > TAIL_LINES or path.stat().st_size > TAIL_BYTES
    return f"[{_CUT} {before:,} bytes before]\n{kept}" if is_cut else kept


def inside(folder: Path, relative: str) -> Path | None:
    """The path of a file below ``folder``; ``None`` for one that leads out of it: records may come from elsewhere."""
    try:
        path = (folder / relative).resolve()
        return path if path.is_relative_to(_resolved(folder)) else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL in it, a circle of links
        return None


@lru_cache(maxsize=4)
def _resolved(folder: Path) -> Path:
    return folder.resolve()


#: Bytes of all texts together, as HTML.
BUDGET = 2_400_000


@dataclass(frozen=True)
class ShownText:
    """A text at one place of the page.

    Attributes:
        id: of the element that has it, one for all places with this text.
        text: empty where another place has it, or none.
        is_left_out: whether no place has it.
    """

    id: str
    text: str = ""
    is_left_out: bool = False


@dataclass
class StoredTexts:
    """First ``admit()`` all, the most important ones first; then ask for each in the order of the page."""

    budget: int = BUDGET
    _admitted: set[str] = field(default_factory=set)
    _refused: set[str] = field(default_factory=set)
    _shown: set[str] = field(default_factory=set)

    def admit(self, texts: Iterable[str]) -> None:
        """Take texts as long as there is room."""
        for text in texts:
            name = _name(text)
            if name in self._admitted or name in self._refused:
                continue
            size = len(html.escape(text).encode(errors="replace"))
            if size <= self.budget:
                self.budget -= size
                self._admitted.add(name)
            else:
                self._refused.add(name)

    def show(self, text: str) -> ShownText:
        """The text, where this is the first place that shows it."""
        name = _name(text)
        if name not in self._admitted:
            return ShownText(name, is_left_out=True)
        if name in self._shown:
            return ShownText(name)
        self._shown.add(name)
        return ShownText(name, text)


def _name(text: str) -> str:
    return "x" + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]


#: Entries of ``failure_details``, of ranks and of warnings that are shown; the trial file has all.
_MOST = 8

#: Longest message in bytes, and in lines.
_MESSAGE = 1_500, 12

#: Artifacts of which the end is shown, in this order; all are linked.
_LOGS = ("stacks", "stderr", "stdout")

#: Further logs that are shown: of ranks.
_MOST_LOGS = 6

#: Keys of ``failure_details`` that have a place of their own, or are for machines.
_NOT_SHOWN = ("traceback", "at")


@dataclass(frozen=True)
class FailedTrial:
    """What is shown of a trial that is not ok.

    Attributes:
        status: as recorded.
        where: phase, kind and rank, in words.
        headline: first line of the message.
        message, traceback: bounded; the message is empty where the headline says it all.
        details: of the failure, one line each.
        warnings: of the record.
        seeds: one line.
        variables: that were set for it, ``NAME=VALUE``, one per line; secrets have no values in records.
        artifacts: name to path, relative to the results directory.
        logs: those of them that have an end to be shown.
        can_replay: whether the record says how it was run.
    """

    status: str
    where: str
    headline: str
    message: str
    traceback: str
    details: str
    warnings: tuple[str, ...]
    seeds: str
    variables: str
    artifacts: Mapping[str, str]
    logs: tuple[tuple[str, str], ...]
    can_replay: bool

    @property
    def ended(self) -> str:
        """``workload failed: exception in run``; ``timeout in run``."""
        status = self.status.replace("_", " ")
        return self.where if self.where.startswith(status) else f"{status}: {self.where}".removesuffix(": ")


def evidence_of(record: Mapping[str, Any], file: str) -> FailedTrial:
    """``file``: of the record, relative to the results directory.

    A record that others have written may have anything in it: what cannot be read is said.
    """
    try:
        return _evidence(record, file)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        note = f"this record cannot be shown: {type(error).__name__}: {error}"
        return FailedTrial(str(record.get("exit_status")), "", one_line(note), "", "", "", (), "", "", {}, (), False)


def _evidence(record: Mapping[str, Any], file: str) -> FailedTrial:
    failure = record.get("failure") or {}
    kind = failure.get("type") or failure.get("signal") or ""
    message = failure.get("message") or ""
    text = message if not kind or kind in message else f"{kind}: {message}"
    headline = one_line(text.strip().partition("\n")[0])
    shown = bounded(text, *_MESSAGE)
    request = record.get("request") or {}
    folder = PurePosixPath(file).parent
    artifacts = {name: str(folder / path) for name, path in (record.get("artifacts") or {}).items()}
    return FailedTrial(
        status=record["exit_status"],
        where=_where(failure),
        headline=headline or _where(failure),
        message="" if shown == headline else shown,
        traceback=bounded("\n".join(own_frames((failure.get("traceback") or "").rstrip().splitlines()))),
        details="\n".join(_details(record)),
        warnings=tuple(one_line(text, 400) for text in (record.get("warnings") or ())[:_MOST]),
        seeds=_seeds(record),
        variables="\n".join(_variables(request)),
        artifacts=artifacts,
        logs=tuple((name, artifacts[name]) for name in _logs(artifacts)),
        can_replay=record.get("request") is not None,
    )


def replay_command(results: str, file: str) -> str:
    """Runs the trial again, with its seeds."""
    return f"pytest --aorta-replay {shlex.quote(str(PurePosixPath(results, file)))}"


def tails(evidence: FailedTrial, results: Path) -> list[tuple[str, str, str]]:
    """Name, path and last lines of each log that has some. Nothing outside of the results directory is read."""
    found = []
    for name, relative in evidence.logs:
        path = inside(results, relative)
        tail = log_tail(path) if path is not None else ""
        if tail.strip():
            found.append((name, relative, tail))
    return found


def _where(failure: Mapping[str, Any]) -> str:
    if not failure:
        return ""
    rank = f", rank {failure['rank']}" if failure.get("rank") is not None else ""
    code = f" {failure['exit_code']}" if failure.get("kind") == "exit_code" and failure.get("exit_code") else ""
    return f"{failure.get('kind', '')}{code} in {failure.get('phase', '')}{rank}".replace("_", " ")


def _details(record: Mapping[str, Any]) -> Iterator[str]:
    entries = record["result"].get("failure_details") or []
    for entry in entries[:_MOST]:
        yield one_line(", ".join(f"{key}: {value}" for key, value in entry.items() if key not in _NOT_SHOWN), 400)
    if len(entries) > _MOST:
        yield f"and {len(entries) - _MOST} more in the trial file"
    ranks = [rank for rank in record.get("ranks") or () if rank.get("failure")]
    for rank in ranks[:_MOST]:
        collateral = " (because of another one)" if rank.get("collateral") else ""
        yield one_line(f"rank {rank.get('rank')}{collateral}: {rank['failure'].get('message', '')}", 400)
    if len(ranks) > _MOST:
        yield f"and {len(ranks) - _MOST} more ranks in the trial file"


def _seeds(record: Mapping[str, Any]) -> str:
    seeds = record.get("seeds") or {}
    if not seeds:
        of_ranks = [rank["seeds"]["seed"] for rank in record.get("ranks") or () if rank.get("seeds")]
        return f"of the ranks: {', '.join(map(str, of_ranks[:_MOST]))}" if of_ranks else ""
    generators = ", ".join(f"{name} {seed}" for name, seed in (seeds.get("generators") or {}).items())
    return one_line(f"{seeds.get('seed')} ({generators})" if generators else str(seeds.get("seed")), 400)


def _variables(request: Mapping[str, Any]) -> Iterator[str]:
    for name, value in sorted((request.get("overlay") or {}).items()):
        yield one_line(f"{name}={value}", 1_000)


def _logs(artifacts: Mapping[str, str]) -> list[str]:
    known = [name for name in _LOGS if name in artifacts]
    others = sorted(name for name, path in artifacts.items() if path.endswith(".log") and name not in _LOGS)
    return [*known, *others[:_MOST_LOGS]]


@dataclass(frozen=True)
class Material:
    """The trials of a results directory.

    Attributes:
        folder: that files are relative to.
        triage: with all trials.
        trials: in run order.
        evidence: of those that are not ok, by file.
        environments: of each cell.
        hosts: how many trials each has run.
        installed: lists of installed distributions.
        left_out: what was not read, in words.
    """

    folder: Path
    triage: Triage
    trials: tuple[TrialFacts, ...]
    evidence: dict[str, FailedTrial]
    environments: dict[CellKey, Environments]
    hosts: Counter[str]
    installed: Installed
    left_out: tuple[str, ...]


def read_material(path: Path, settings: TriageSettings | None = None) -> Material:
    """All of it.

    Raises:
        RequestError: there is nothing at ``path``, or no trial.
    """
    results = Results(path)
    trials: list[TrialFacts] = []
    evidence: dict[str, FailedTrial] = {}
    environments: dict[CellKey, Environments] = {}
    hosts: Counter[str] = Counter()
    for trial in results:
        trials.append(trial.facts)
        environments.setdefault(trial.facts.key, Environments()).add(trial.record)
        hosts[one_line(str(trial.record.get("host") or "an unknown host"))] += 1
        if trial.facts.outcome != "ok":
            evidence[trial.file] = evidence_of(trial.record, trial.file)
    if not trials:
        raise results.nothing_found()
    return Material(
        folder=results.folder,
        triage=triage_in_order(trials, settings),
        trials=tuple(sorted(trials, key=lambda facts: (facts.started_at, facts.index, facts.file))),
        evidence=evidence,
        environments=environments,
        hosts=hosts,
        installed=results.installed,
        left_out=tuple(_left_out(results)),
    )


def _left_out(results: Results) -> Iterable[str]:
    if results.unreadable:
        first = results.unreadable[0]
        number = counted(len(results.unreadable), "trial file")
        yield one_line(f"{number} could not be read; the first is {first.file}: {first.reason}", 500)
    if results.replays:
        yield f"{counted(results.replays, 'replay')} left out: which trials are replayed depends on how they ended"


def labels_of(keys: Iterable[CellKey]) -> dict[CellKey, str]:
    """Names of cells: with what differs between them, and no more; each is unique."""
    keys = list(keys)
    parts: list[Callable[[CellKey], str]] = [lambda key: key.cell]
    if len({key.workload for key in keys}) > 1:
        parts.insert(0, lambda key: key.workload)
    if len({key.test for key in keys}) > 1:
        parts.insert(0, lambda key: key.test)
    if len({key.options for key in keys}) > 1:
        parts.append(lambda key: key.options)
    found: dict[CellKey, str] = {}
    times: Counter[str] = Counter()
    for key in keys:
        label = one_line(" ".join(filter(None, (part(key) for part in parts)))) or "(no name)"
        times[label] += 1
        found[key] = label if times[label] == 1 else f"{label} #{times[label]}"
    return found


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

    evidence: FailedTrial
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


def _texts(evidence: FailedTrial, file: str, results: Path) -> list[tuple[str, str, str]]:
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


#: Differences that are shown, the most important ones.
_MOST_DIFFERENCES = 15

#: Cells that are named where several differ alike.
_MOST_NAMES = 4


@dataclass(frozen=True)
class EnvironmentView:
    """What differs between two sets of trials; ``differences`` is empty where nothing does."""

    name: str
    other: str
    differences: tuple[str, ...]


def between_cells(material: Material, labels: Mapping[CellKey, str]) -> list[EnvironmentView]:
    """Of each cell from its baseline."""
    cells = [cell.statistics for cell in material.triage.cells]
    baselines = choose_baselines(cells, material.triage.settings.baseline).of
    return [
        EnvironmentView(labels[key], labels[base], _differences(material, base, material, key))
        for key, base in baselines.items()
    ]


def from_other_run(
    material: Material, other: Material, name: str, labels: Mapping[CellKey, str]
) -> list[EnvironmentView]:
    """Of each cell from the same one of another run; from that run's first where it has none of this name.

    Cells that differ alike share a line.
    """
    theirs = {_name_environments(key): key for key in other.environments}
    found: dict[tuple[str, ...], list[str]] = {}
    for key in material.environments:
        same = theirs.get(_name_environments(key)) or next(iter(other.environments))
        found.setdefault(_differences(other, same, material, key), []).append(labels[key])
    return [EnvironmentView(_listed(names), one_line(name), texts) for texts, names in found.items()]


def _name_environments(key: CellKey) -> tuple[str, str, str]:
    return key.workload, key.cell, key.test


def _differences(before: Material, a: CellKey, after: Material, b: CellKey) -> tuple[str, ...]:
    found = differences(before.environments[a], after.environments[b], (before.installed, after.installed))
    texts = [one_line(str(each)) for each in found[:_MOST_DIFFERENCES]]
    more = len(found) - _MOST_DIFFERENCES
    return (*texts, *([f"and {more} more, which pytest-aorta compare shows"] if more > 0 else []))


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join([*names[:_MOST_NAMES], *([f"and {more} more"] if more > 0 else [])])


#: Names that the head of the page has of each kind.
_MOST_IN_HEAD = 6

#: Warnings that the head of the page has.
_MOST_WARNINGS = 20


@dataclass(frozen=True)
class Page:
    """One report.

    Attributes:
        title: names of the workloads.
        facts: of the run, as name and value: trials, host, when.
        sentences: the most important conclusions.
        warnings: what makes them doubtful.
        cells, signatures, trials: rows of their tables.
        steps: a chart for each workload that has step times.
        timeline: of failures; ``None`` where there are no trials.
        environments: what differs between them.
        method: of the statistics.
        version: of this software.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    sentences: tuple[str, ...]
    warnings: tuple[str, ...]
    cells: tuple[CellView, ...]
    signatures: tuple[SignatureView, ...]
    trials: tuple[TrialView, ...]
    steps: tuple[charts.Chart, ...]
    timeline: charts.Chart | None
    environments: tuple[EnvironmentView, ...]
    method: str
    version: str = __version__

    @property
    def most_drawn(self) -> int:
        """Cells in a chart."""
        return charts.MOST_CELLS

    @property
    def outcomes(self) -> list[str]:
        """Those that there are, for the filter."""
        return list(dict.fromkeys(trial.outcome for trial in self.trials))


def page_of(material: Material, output: Path, against: tuple[str, Material] | None = None) -> Page:
    """The page of a results directory.

    ``against``: another one, and its name.
    """
    table = material.triage.table()
    labels = labels_of([row.cell.key for row in table.rows])
    signatures = {facts.signature for facts in material.trials if facts.signature is not None}
    ids = {signature: _id(signature) for signature in signatures}
    of_files = {facts.file: ids[facts.signature] for facts in material.trials if facts.signature is not None}
    cells = cell_views(table, labels, ids)
    shown = _shown(material.folder)
    return Page(
        title=_first_names(sorted({row.cell.key.workload for row in table.rows})) or "no trials",
        facts=tuple(_facts(material, shown)),
        sentences=tuple(_sentences(table, labels)),
        warnings=tuple(_warnings(table, material, labels)),
        cells=tuple(cells),
        signatures=tuple(signature_views(material, labels, ids)),
        trials=tuple(trial_views(material, labels, of_files, output, shown)),
        steps=tuple(_steps(material, labels)),
        timeline=_timeline(material, labels),
        environments=tuple(_environments(material, labels, against)),
        method=next((row.comparison.method for row in table.rows if row.comparison is not None), "fixed"),
    )


def _id(signature: Signature) -> str:
    """Equal for equal signatures, in other reports as well."""
    return f"s{hashlib.sha256(repr(signature).encode(errors='replace')).hexdigest()[:8]}"


def _shown(results: Path) -> str:
    """A results directory as it is typed: relative where it lies below the current one."""
    absolute, here = Path(os.path.abspath(results)), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def _facts(material: Material, shown: str) -> list[tuple[str, str]]:
    cells = len(material.triage.cells)
    numbers = f"{counted(len(material.trials), 'trial')} in {counted(cells, 'cell')}"
    found = [("trials", numbers), ("host", _first_names([name for name, _ in material.hosts.most_common()]))]
    times = sorted(facts.started_at for facts in material.trials if facts.started_at)
    if times:
        first, last = (one_line(time[:16].replace("T", " ")) for time in (times[0], times[-1]))
        end = last[11:] if last[:10] == first[:10] else last
        found.append(("started", f"{first} UTC" if first == last else f"{first} to {end} UTC"))
    return [*found, ("results", one_line(shown))]


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(map(one_line, first_names(names, _MOST_IN_HEAD)))


def _sentences(table: Table, labels: Mapping[CellKey, str]) -> list[str]:
    """What the table comes to; of cells that are not compared, how often they have failed."""
    found = conclusions(table)
    if not found:
        for row in table.rows[:_MOST_IN_HEAD]:
            cell = row.cell
            found.append(
                f"{labels[cell.key]}: {cell.failures} of {counted(cell.counted, 'trial')} failed, "
                f"{rate_with_interval(cell.rate, cell.rate_interval)}; there is nothing to compare with."
                if cell.counted
                else f"{labels[cell.key]}: no trial says anything about the workload."
            )
    return [one_line(text, 600) for text in found]


def _warnings(table: Table, material: Material, labels: Mapping[CellKey, str]) -> list[str]:
    """What concerns several cells, then their confounds, what their variables have not done, and what trials say."""
    found = [*table.warnings]
    for row in table.rows:
        if row.confound is not None and row.confound.kind == "speed":
            found.append(f"{labels[row.cell.key]}: {row.confound.text}; a fault of timing can hide in slower steps")
    found += dict.fromkeys(text for row in table.rows if row.effect is not None for text in row.effect.sentences)
    for row in table.rows:
        for text, number in row.cell.warnings.items():
            found.append(f"{labels[row.cell.key]}: {text} ({counted(number, 'trial')})")
    found += material.left_out
    more = len(found) - _MOST_WARNINGS
    shown = [one_line(text, 500) for text in found[:_MOST_WARNINGS]]
    return [*shown, *([f"and {counted(more, 'more warning')}"] if more > 0 else [])]


def _environments(
    material: Material, labels: Mapping[CellKey, str], against: tuple[str, Material] | None
) -> list[EnvironmentView]:
    others = [] if against is None else from_other_run(material, against[1], against[0], labels)
    return [*others, *between_cells(material, labels)]


def _steps(material: Material, labels: Mapping[CellKey, str]) -> list[charts.Chart]:
    """A chart for each workload: the steps of different ones have nothing in common."""
    groups: dict[str, dict[CellKey, list[TrialFacts]]] = {}
    for key in labels:
        groups.setdefault(" ".join(filter(None, (key.test, key.workload))), {})[key] = []
    by_cell = {key: trials for cells in groups.values() for key, trials in cells.items()}
    for facts in material.trials:
        by_cell[facts.key].append(facts)
    found = []
    for cells in groups.values():
        chart = charts.step_times([(labels[key], trials) for key, trials in cells.items()])
        if chart is not None:
            found.append(chart)
    return found


def _timeline(material: Material, labels: Mapping[CellKey, str]) -> charts.Chart | None:
    orders: dict[CellKey, list[tuple[int, Outcome]]] = {key: [] for key in labels}
    for order, facts in enumerate(material.trials, 1):
        orders[facts.key].append((order, facts.outcome))
    return charts.timeline([(labels[key], trials) for key, trials in orders.items()])


def check_output(output: Path) -> None:
    """Find out whether a report can be written to ``output``.

    Raises:
        ReportError: its folder does not exist, or cannot be written; it is a folder.
    """
    try:
        is_folder, has_folder = output.is_dir(), output.parent.is_dir()
    except (OSError, ValueError) as error:  # too long, a NUL in it
        raise ReportError(f"{str(output)[:200]!r} is no path of a file: {error}") from None
    if is_folder:
        raise ReportError(f"{output} is a folder; expected the path of an HTML file")
    if not has_folder:
        raise ReportError(f"the folder {output.parent} does not exist; expected the path of an HTML file in one")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise ReportError(f"the folder {output.parent} cannot be written")


def write_report(
    results: Path, output: Path, against: Path | None = None, settings: TriageSettings | None = None
) -> None:
    """Write one HTML file that needs nothing else; it is complete, or as it was before.

    Args:
        results: a results directory.
        output: the file.
        against: results of another run, to compare environments with.
        settings: of the verdicts; by default those of the last run, which its ``matrix.json`` has.

    Raises:
        RequestError: a library is missing; there are no trials; the baseline is no cell; the file cannot be written.
    """
    check_libraries()
    check_output(output)
    from pytest_aorta.triage.matrix import EarlierMatrix

    material = read_material(results, settings or EarlierMatrix(results).settings)
    if settings is not None and settings.baseline is not None:
        cells = [(cell.key.cell, cell.mitigations) for cell in material.triage.cells]
        check_baseline(settings.baseline, cells, "--baseline")
    other = None if against is None else (str(against), read_material(against, settings))
    text = render(page_of(material, output, other))
    try:
        write_text(output, text)
    except OSError as error:
        raise ReportError(f"{output}: {error.strerror}") from None


def _shown_writing(value: Any) -> Any:
    """A value of a template: whatever comes from a record does nothing but be seen. Markup is ours."""
    return plain(value) if type(value) is str else value


def render(page: Page) -> str:
    """The page as HTML."""
    import jinja2

    from pytest_aorta.triage import columns

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_aorta.triage"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown_writing,
    )
    for name in ("percent", "rate_with_interval", "difference_with_interval", "p_value", "step_ms", "counted"):
        environment.filters[name] = getattr(columns, name)
    return environment.get_template("page.html.j2").render(page=page)
