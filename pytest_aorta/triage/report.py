"""A results directory as one HTML file that needs nothing else."""

from __future__ import annotations

import hashlib
import html
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from string import ascii_uppercase
from typing import Any
from urllib.parse import quote

from pytest_aorta._version import __version__
from pytest_aorta.common.texts import ESCAPES, first_names, own_frames, read_tail, stacks_excerpt, without_runner
from pytest_aorta.probe.environment_facts import GPUS
from pytest_aorta.settings import RequestError
from pytest_aorta.triage import TriageSettings, charts, columns
from pytest_aorta.triage.columns import COLUMNS, conclusions, counted, rate_with_interval
from pytest_aorta.triage.environments import Environments, differences
from pytest_aorta.triage.facts import OUTCOMES, CellKey, StepSummary, TrialFacts
from pytest_aorta.triage.matrix import EarlierMatrix, pipe_table, text_of
from pytest_aorta.triage.reading import Results, triage_in_order
from pytest_aorta.triage.signatures import Signature
from pytest_aorta.triage.starts import Found, Heat, sentences, with_replays
from pytest_aorta.triage.verdicts import Row, Table, Triage, check_baseline
from pytest_aorta.triage.where import Factor
from pytest_aorta.workspace.atomic import write_text

#: Runs of what is not printable, among them controls, lone surrogates and marks that turn the direction of a text.
_HIDDEN = re.compile(r"[^\n\t -~\u00a1-\u00ac\u00ae-\u02ff]")

#: Longest name, and line of a heading.
_LINE = 200

#: Lines, and bytes, that are shown of the end of a log or a traceback; and of a message.
TAIL_LINES, TAIL_BYTES = 40, 8_192
_MESSAGE_LINES, _MESSAGE_BYTES = 12, 1_500

_CUT = "\N{HORIZONTAL ELLIPSIS}"

#: Bytes of all long texts of a page together, as HTML; where that is spent, trials have their headlines and files.
BUDGET = 2_400_000

#: What is shown in one place: entries of a failure, differences, links, names and warnings of the head, places.
_MOST_ENTRIES, _MOST_DIFFERENCES, _MOST_LINKS, _MOST_NAMES, _MOST_WARNINGS, _MOST_SHARES = 8, 15, 24, 6, 20, 16

#: Ways to fail with a column of their own in the table of cells and signatures.
_MOST_COLUMNS = 8

#: Ends of the scale of differences.
_REACHES = (0.05, 0.1, 0.2, 0.5, 1.0)

#: Artifacts of which the end is shown, in this order, and how many further logs, of ranks; all are linked.
_LOGS = ("stacks", "stderr", "stdout")
_MOST_LOGS = 6


class ReportError(RequestError):
    """A report that cannot be written."""


def check_output(output: Path) -> None:
    """Find out whether a report can be written to ``output``.

    Raises:
        ReportError: its folder does not exist, or cannot be written; it is a folder.
    """
    if os.path.isdir(output):  # which has no error for paths that cannot be
        raise ReportError(f"{output} is a folder; expected the path of an HTML file")
    if not os.path.isdir(output.parent):
        raise ReportError(f"the folder {output.parent} does not exist; expected the path of an HTML file in one")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise ReportError(f"the folder {output.parent} cannot be written")


def write_report(
    results: Path, output: Path, settings: TriageSettings | None = None, *, baseline: str | None = None
) -> None:
    """Write one HTML file that needs nothing else; it is complete, or as it was before.

    Args:
        results: a results directory.
        output: the file.
        settings: of the verdicts; by default those of the last run, which its ``matrix.json`` has.
        baseline: in place of theirs, which may be a cell that has no trial yet.

    Raises:
        RequestError: a library is missing; there are no trials; the baseline is no cell; the file cannot be written.
    """
    check_output(output)
    material = read_material(results, settings or EarlierMatrix(results).settings, baseline)
    text = render(page_of(material, output))
    try:
        write_text(output, text)
    except (OSError, ValueError) as error:
        raise ReportError(f"{output}: {getattr(error, 'strerror', None) or error}") from None


def render(page: Mapping[str, Any]) -> str:
    """The page as HTML."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_aorta.triage"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        # Whatever comes from a record does nothing but be seen. Markup is ours.
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
    for name in ("difference_with_interval", "p_value", "step_ms", "counted", "verdict_note"):
        environment.filters[name] = getattr(columns, name)
    environment.filters["sort_value"] = _sort_value
    return environment.get_template("page.html.j2").render(page=page)


def _sort_value(value: Any) -> Any:
    """What rows are sorted by; empty for those that come last."""
    value = value.median_ms if isinstance(value, StepSummary) else value
    return value if isinstance(value, int | float) else ""


# Texts that others have written: what is not to be seen is shown as such, and length is bounded.


def plain(text: str) -> str:
    """A text of several lines that shows what is in it, and does nothing."""
    if "\x1b" in text:
        text = ESCAPES.sub("", text)
    if "\r" in text:  # a progress bar, of which a terminal shows the last state
        text = re.sub(r"[^\n]*\r(?=[^\n\r])", "", text.replace("\r\n", "\n")).replace("\r", "")
    return _HIDDEN.sub(lambda found: found[0] if found[0].isprintable() else "\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str, longest: int = _LINE) -> str:
    """A text without line breaks, cut in the middle where it is too long: names differ at their ends."""
    line = " ".join(plain(text[: 20 * longest]).split())
    if len(line) <= longest:
        return line
    return f"{line[: longest * 2 // 3]}{_CUT}{line[-(longest // 3) + 1 :]}"


def bounded(text: str, most_lines: int = TAIL_LINES, most_bytes: int = TAIL_BYTES) -> str:
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
    if path.name.endswith("stacks.log"):
        return plain("\n".join(stacks_excerpt(path)))
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


def _more(number: int, what: str) -> list[str]:
    return [f"and {what.format(number)}"] if number > 0 else []


# What a record says of a trial that is not ok: why, with what it was started, and what it has left.


@dataclass(frozen=True)
class FailedTrial:
    """What is shown of a trial that is not ok.

    Attributes:
        ended: status, phase, kind and rank, in words.
        headline: first line of the message.
        texts: long ones with their headings; each is bounded.
        warnings: of the record.
        artifacts: name to path, relative to the results directory.
        can_replay: whether the record says how it was run.
    """

    ended: str
    headline: str
    texts: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    artifacts: Mapping[str, str] = field(default_factory=dict)
    can_replay: bool = False


def failed_trial(record: Mapping[str, Any], file: str) -> FailedTrial:
    """``file``: of the record, relative to the results directory.

    A record that others have written may have anything in it: what cannot be read is said.
    """
    try:
        return _failed_trial(record, file)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        note = f"this record cannot be shown: {type(error).__name__}: {error}"
        return FailedTrial(str(record.get("exit_status")), one_line(note))


def _failed_trial(record: Mapping[str, Any], file: str) -> FailedTrial:
    failure, request = record.get("failure") or {}, record.get("request") or {}
    kind = failure.get("type") or failure.get("signal") or ""
    message = failure.get("message") or ""
    text = message if not kind or kind in message else f"{kind}: {message}"
    headline = one_line(text.strip().partition("\n")[0])
    shown = bounded(text, _MESSAGE_LINES, _MESSAGE_BYTES)
    where, status = _where(failure), record["exit_status"].replace("_", " ")
    overlay = sorted((request.get("overlay") or {}).items())  # secrets have no values in records
    texts = {
        "message": "" if shown == headline else shown,
        "details": "\n".join(_details(record)),
        "variables that were set": "\n".join(one_line(f"{name}={value}", 1_000) for name, value in overlay),
        "traceback": bounded("\n".join(own_frames((failure.get("traceback") or "").rstrip().splitlines()))),
    }
    folder, files = PurePosixPath(file).parent, dict(record.get("artifacts") or {})
    for name, found in (record.get("collected") or {}).items():
        said = [text for text in (found["sentence"], *found["problems"]) if text]
        texts[f"what {one_line(name)} found"] = bounded("\n".join(said))
        files |= {path: path for path in found["artifacts"][:_MOST_ENTRIES]}
    return FailedTrial(
        ended=where if where.startswith(status) else f"{status}: {where}".removesuffix(": "),
        headline=headline or where,
        texts=texts,
        warnings=tuple(one_line(text, 400) for text in (record.get("warnings") or ())[:_MOST_ENTRIES]),
        artifacts={name: str(folder / path) for name, path in files.items()},
        can_replay=record.get("request") is not None,
    )


def _where(failure: Mapping[str, Any]) -> str:
    if not failure:
        return ""
    rank = f", rank {failure['rank']}" if failure.get("rank") is not None else ""
    rank += f" ({failure['confidence']})" if rank and failure.get("confidence") == "likely" else ""
    code = f" {failure['exit_code']}" if failure.get("kind") == "exit_code" and failure.get("exit_code") else ""
    return f"{failure.get('kind', '')}{code} in {failure.get('phase', '')}{rank}".replace("_", " ")


def _details(record: Mapping[str, Any]) -> list[str]:
    entries = record["result"].get("failure_details") or []
    found = [
        ", ".join(f"{key}: {value}" for key, value in entry.items() if key not in ("traceback", "at"))
        for entry in entries[:_MOST_ENTRIES]
    ]
    found += _more(len(entries) - _MOST_ENTRIES, "{} more in the trial file")
    ranks = [rank for rank in record.get("ranks") or () if rank.get("failure")]
    for rank in ranks[:_MOST_ENTRIES]:
        collateral = " (because of another one)" if rank.get("collateral") else ""
        found.append(f"rank {rank.get('rank')}{collateral}: {rank['failure'].get('message', '')}")
    found += _more(len(ranks) - _MOST_ENTRIES, "{} more ranks in the trial file")
    return [one_line(text, 400) for text in found]


# The page.


@dataclass(frozen=True)
class Material:
    """The trials of a results directory, collected record by record, so that thousands need not be held.

    Attributes:
        folder: that files are relative to.
        triage: with all trials.
        trials: in run order.
        failed: those that are not ok, by file.
        environments: of each cell.
        hosts: how many trials each has run.
        commands: what was run, and how often.
        found: what collectors have found.
        left_out: what was not read, in words.
    """

    folder: Path
    triage: Triage
    trials: tuple[TrialFacts, ...]
    failed: dict[str, FailedTrial]
    environments: dict[CellKey, Environments]
    hosts: Counter[str]
    commands: Counter[str]
    found: Found
    left_out: tuple[str, ...]


def read_material(path: Path, settings: TriageSettings | None = None, baseline: str | None = None) -> Material:
    """All of it.

    Raises:
        RequestError: there is nothing at ``path``, or no trial, or no such baseline.
    """
    if baseline is not None:
        settings = replace(settings or TriageSettings(), baseline=baseline)
    results = Results(path)
    trials: list[TrialFacts] = []
    failed: dict[str, FailedTrial] = {}
    environments: dict[CellKey, Environments] = {}
    hosts: Counter[str] = Counter()
    commands: Counter[str] = Counter()
    found = Found()
    for trial in results:
        found.add(trial, results.folder)
        trials.append(trial.facts)
        environments.setdefault(trial.facts.key, Environments(results.installed)).add(trial.record)
        hosts[one_line(str(trial.record.get("host") or "an unknown host"))] += 1
        commands[_command(trial.record)] += 1
        if trial.facts.outcome != "ok":
            failed[trial.file] = failed_trial(trial.record, trial.file)
    if not trials:
        raise results.nothing_found()
    found.add_replays(results.folder)
    triage = triage_in_order(trials, settings)
    if baseline is not None:
        check_baseline(baseline, [(cell.key.cell, cell.mitigations) for cell in triage.cells], "--baseline")
    left_out = []
    if results.unreadable:
        first, number = results.unreadable[0], counted(len(results.unreadable), "trial file")
        left_out.append(one_line(f"{number} could not be read; the first is {first.file}: {first.reason}", 500))
    if results.replays:
        why = "which trials are replayed depends on how they ended"
        left_out.append(f"{counted(results.replays, 'replay')} left out: {why}")
    return Material(
        folder=results.folder,
        triage=triage,
        trials=tuple(sorted(trials, key=lambda facts: (facts.started_at, facts.index, facts.file))),
        failed=failed,
        environments=environments,
        hosts=hosts,
        commands=commands,
        found=found,
        left_out=tuple(left_out),
    )


def _command(record: Mapping[str, Any]) -> str:
    """What a trial runs, as it is typed in a shell."""
    config = record.get("config")
    command = config.get("command") if isinstance(config, Mapping) else None
    name = str(record.get("workload"))
    return one_line(str(command), 1_000) if command else one_line(f"pytest --aorta-workload {shlex.quote(name)}")


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


def page_of(material: Material, output: Path) -> dict[str, Any]:
    """What the templates show of a results directory."""
    table = with_replays(material.triage.table(), material.triage, material.folder)
    labels = labels_of(row.cell.key for row in table.rows)
    ids = {facts.signature: _id(facts.signature) for facts in material.trials if facts.signature is not None}
    absolute, here = Path(os.path.abspath(material.folder)), Path.cwd()
    typed = str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
    trials = _trials(material, labels, ids, output, typed)
    ways = _signatures(material, labels, ids)
    return {
        "title": _listed(sorted({row.cell.key.workload for row in table.rows})) or "no trials",
        "facts": _facts(material, typed),
        "sentences": _sentences(table, labels),
        "to_paste": to_paste(material),
        "warnings": _warnings(table, material, labels),
        "columns": [column for column in COLUMNS if "html" in column.formats and column.says_something(table.rows)],
        "rows": table.rows,
        "labels": labels,
        "ids": ids,
        "all_outcomes": OUTCOMES,
        "outcomes": list(dict.fromkeys(trial["facts"].outcome for trial in trials)),
        "reach": _reach(table),
        "signatures": ways,
        "heat": _heat(table, labels, ways),
        "trials": trials,
        "where": _gathered(table),
        "starts": _starts(material, table, labels),
        "steps": _steps(material, labels),
        "evidence": _evidence(material, table, labels),
        "most_drawn": charts.MOST_CELLS,
        "environments": _between_cells(material, labels),
        "method": next((row.comparison.method for row in table.rows if row.comparison is not None), "fixed"),
        "version": __version__,
    }


#: Rows of the table that is pasted; what tells one installation from another.
_MOST_ROWS = 3
_VERSIONS = (GPUS, "NVIDIA driver", "AMD driver", "ROCm", "torch", "CUDA of torch", "NCCL", "RCCL", "Python", "kernel")


def to_paste(material: Material) -> str:
    """For a bug report, in Markdown: what was found, the rows that show it, the command, the versions."""
    table = with_replays(material.triage.table(), material.triage, material.folder)
    labels = labels_of(row.cell.key for row in table.rows)
    shown = sorted(table.rows, key=lambda row: (row.comparison is not None, _p(row)))[:_MOST_ROWS]
    found = [column for column in COLUMNS if "terminal" in column.formats and column.says_something(shown)]
    kept = [column for column in found if column.title not in ("Workload", "Environment", "Cell")]
    rows = [[labels[row.cell.key], *(column.text_of(row) for column in kept)] for row in shown]
    rules = ["---", *("---" if column.left else "---:" for column in kept)]
    parts = [f"**{text_of(sentence)}**" for sentence in _sentences(table, labels)]
    parts.append(pipe_table(["Cell", *(column.title for column in kept)], rules, rows))
    more = len(table.rows) - len(shown)
    items = [f"and {counted(more, 'other cell')}"] if more else []
    ways = Counter(facts.signature.text for facts in material.trials if facts.signature is not None)
    items += [f"{number} x {one_line(text)}" for text, number in ways.most_common(_MOST_ROWS)]
    items += [f"command: {text}" for text, _ in material.commands.most_common(_MOST_ROWS)]
    items += [f"{name}: {text}" for name, text in _versions(material)]
    items += [f"{name}: {text}" for name, text in _facts(material, "") if name in ("trials", "started")]
    parts.append("\n".join(f"- {text_of(item)}" for item in [*items, f"pytest-aorta {__version__}"]))
    return "\n\n".join(parts) + "\n"


def _p(row: Row) -> float:
    return 1.0 if row.comparison is None else row.comparison.p_adjusted


def _versions(material: Material) -> Iterator[tuple[str, str]]:
    everywhere = Environments()
    for environments in material.environments.values():
        everywhere.update(environments)
    by_name = {fact.name: counts for fact, counts in everywhere.facts().items()}
    for name in _VERSIONS:
        values = [str(value) for value, _ in by_name.get(name, Counter()).most_common() if isinstance(value, str)]
        if values:
            yield name, _listed(values)


#: What each test of where failures gather asks.
_ASKED: Mapping[Factor, str] = {
    "host": "Host",
    "device": "Device",
    "slot": "Slot",
    "job": "Job",
    "rank": "Rank that is the cause",
    "order": "Time",
    "trial before": "Trial before it",
    "trial before in its cell": "Trial before it in its cell",
    "trial before at its place": "Trial before it at its place",
    "step times": "Step times over the run",
}


def _gathered(table: Table) -> list[dict[str, Any]]:
    """Where failures gather, test by test: what is found first; of many values those with the most failures."""
    tests = sorted(table.associations.tests, key=lambda test: not test.is_significant)
    found = []
    for test in tests if any(row.cell.failures for row in table.rows) else ():
        most = sorted(test.shares, key=lambda share: -share.failures)[:_MOST_SHARES]
        found.append(
            {
                "asked": _ASKED[test.factor],
                "test": test,
                "sentence": one_line(test.sentence, 400),
                "shares": [(one_line(share.name), share) for share in test.shares if share in most],
                "more": len(test.shares) - len(most),
            }
        )
    return found


def _starts(material: Material, table: Table, labels: Mapping[CellKey, str]) -> list[dict[str, Any]]:
    """What collectors have found, cell by cell, and which cells and trials compute something else."""
    effects = {effect.key: effect for effect in table.observer}
    found: dict[CellKey, dict[str, Any]] = {
        row.cell.key: {
            "label": labels[row.cell.key],
            "sentences": [one_line(text, 600) for text in sentences(row.cell, effects.get(row.cell.key))],
            "heats": [],
        }
        for row in table.rows
    }
    for heat in material.found.bad.values():
        if heat.trial.key in found:  # a replay may be of a trial that is not here
            found[heat.trial.key]["heats"].append(_drawn(heat))
    of = material.triage.baselines().of
    compared = material.found.divergences(material.triage.cells, material.folder, of)
    zooms = EarlierMatrix(material.folder).zooms if compared else {}
    for divergence, beside in compared:
        zoom = zooms.get(divergence.names, "")
        found[divergence.key]["sentences"] += [one_line(text, 600) for text in (*divergence.lines(), zoom) if text]
        found[divergence.key]["heats"] += [_drawn(beside)] if beside is not None else []
    return [each for each in found.values() if each["sentences"]]


def _drawn(heat: Heat) -> dict[str, Any]:
    lines = [(one_line(name, 120), spots) for name, spots in heat.lines]
    return {"heat": heat, "anchor": anchor_of(heat.trial), "lines": lines}


def _id(signature: Signature) -> str:
    """Equal for equal signatures, in other reports as well."""
    return f"s{hashlib.sha256(repr(signature).encode(errors='replace')).hexdigest()[:8]}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(one_line, first_names(names, _MOST_NAMES)))


def _facts(material: Material, typed: str) -> list[tuple[str, str]]:
    """Of the run: trials, host, when."""
    numbers = f"{counted(len(material.trials), 'trial')} in {counted(len(material.triage.cells), 'cell')}"
    found = [("trials", numbers), ("host", _listed([name for name, _ in material.hosts.most_common()]))]
    times = sorted(facts.started_at for facts in material.trials if facts.started_at)
    if times:
        first, last = (one_line(time[:16].replace("T", " ")) for time in (times[0], times[-1]))
        end = last[11:] if last[:10] == first[:10] else last
        found.append(("started", f"{first} UTC" if first == last else f"{first} to {end} UTC"))
    return [*found, ("results", one_line(typed))]


def _sentences(table: Table, labels: Mapping[CellKey, str]) -> list[str]:
    """What the table comes to; of cells that are not compared, how often they have failed."""
    found = conclusions(table)
    compared = any(row.comparison is not None for row in table.rows)
    for row in () if compared else table.rows[:_MOST_NAMES]:
        cell, what = row.cell, "no trial says anything about the workload."
        if cell.counted:
            rate = rate_with_interval(cell.rate, cell.rate_interval)
            what = (
                f"{cell.failures} of {counted(cell.counted, 'trial')} failed, {rate}; there is nothing to compare with."
            )
        found.append(f"{labels[cell.key]}: {what}")
    return [one_line(text, 600) for text in found]


def _warnings(table: Table, material: Material, labels: Mapping[CellKey, str]) -> list[str]:
    """What concerns several cells, then slower steps, what their variables have not done, and what trials say."""
    found = [*table.warnings]
    for row in table.rows:
        if row.is_slower and row.speed is not None and row.verdict.kind != "slower":
            found.append(f"{labels[row.cell.key]}: {row.speed.text}; a fault of timing can hide in slower steps")
    found += dict.fromkeys(text for row in table.rows if row.effect is not None for text in row.effect.sentences)
    for row in table.rows:
        for text, number in row.cell.tally("warnings").items():
            found.append(f"{labels[row.cell.key]}: {text} ({counted(number, 'trial')})")
    found += material.left_out
    more = len(found) - _MOST_WARNINGS
    return [one_line(text, 500) for text in found[:_MOST_WARNINGS]] + _more(more, counted(more, "more warning"))


def _signatures(
    material: Material, labels: Mapping[CellKey, str], ids: Mapping[Signature, str]
) -> list[dict[str, Any]]:
    """All ways to fail, the most frequent first; of each cell the first trials."""
    found: dict[Signature, dict[CellKey, list[TrialFacts]]] = {}
    for facts in material.trials:
        if facts.signature is not None:
            found.setdefault(facts.signature, {}).setdefault(facts.key, []).append(facts)
    ways: list[dict[str, Any]] = []
    for signature, by_cell in found.items():
        kind = f"{signature.kind} in {signature.phase}".replace("_", " ") if signature.phase else signature.kind
        cells = []
        for key in labels:
            if trials := sorted(by_cell.get(key, ()), key=lambda facts: facts.index):
                links = [(facts.index, anchor_of(facts)) for facts in trials[:_MOST_LINKS]]
                cells.append({"key": key, "label": labels[key], "total": len(trials), "links": links})
        ways.append(
            {
                "id": ids[signature],
                "text": one_line(signature.text),
                "short": one_line(signature.short),
                "kind": one_line(", ".join(filter(None, (kind, signature.type, signature.role)))),
                "total": sum(map(len, by_cell.values())),
                "cells": cells,
            }
        )
    ways.sort(key=lambda way: -way["total"])
    return [{**way, "letter": ascii_uppercase[:_MOST_COLUMNS][place : place + 1]} for place, way in enumerate(ways)]


def _heat(table: Table, labels: Mapping[CellKey, str], ways: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """How often, and in which share of its trials, each cell has each signature; ``None`` for one cell or signature."""
    if len(ways) < 2 or len(table.rows) < 2:
        return None
    rows = []
    for row in table.rows[: charts.MOST_CELLS]:
        key, total = row.cell.key, max(1, row.cell.total)
        numbers = [sum(cell["total"] for cell in way["cells"] if cell["key"] == key) for way in ways]
        shown = numbers[:_MOST_COLUMNS] + ([sum(numbers[_MOST_COLUMNS:])] if len(ways) > _MOST_COLUMNS else [])
        rows.append((labels[key], [(number, number / total) for number in shown]))
    return {"ways": ways[:_MOST_COLUMNS], "others": len(ways) > _MOST_COLUMNS, "rows": rows}


def anchor_of(facts: TrialFacts) -> str:
    """Id of the row of a trial: readable, and valid in a fragment as it stands."""
    return quote(str(PurePosixPath(facts.file).with_suffix("")), safe="/@+.~-_", errors="replace")


def _trials(
    material: Material, labels: Mapping[CellKey, str], ids: Mapping[Signature, str], output: Path, typed: str
) -> list[dict[str, Any]]:
    """All trials in run order; ``typed``: the results directory, as it is typed in commands."""
    texts: dict[str, list[tuple[str, str]] | None] = {}
    budget = BUDGET
    for facts in _by_importance(material.trials):
        found = _texts(material.failed[facts.file], material.folder) if budget > 0 else None
        budget -= sum(len(html.escape(text).encode(errors="replace")) for _, text in found or ())
        texts[facts.file] = found if budget > 0 else None
    return [
        {
            "anchor": anchor_of(facts),
            "cell": labels[facts.key],
            "facts": facts,
            "order": order,
            "started": one_line(facts.started_at[:19].replace("T", " ")),
            "step_ms": None if facts.steps is None else facts.steps.median_ms,
            "signature": ids[facts.signature] if facts.signature is not None else "",
            "detail": _detail(facts.file, failed, texts[facts.file], material.folder, output, typed)
            if (failed := material.failed.get(facts.file))
            else None,
        }
        for order, facts in enumerate(material.trials, 1)
    ]


def _detail(
    file: str, failed: FailedTrial, texts: list[tuple[str, str]] | None, results: Path, output: Path, typed: str
) -> dict[str, Any]:
    command = f"pytest --aorta-replay {shlex.quote(str(PurePosixPath(typed, file)))}"
    folder, paths = PurePosixPath(file).parent, (file, *failed.artifacts.values())
    return {
        "failed": failed,
        "texts": texts,
        "files": [(_beside(path, folder), link_to(path, results, output)) for path in paths],
        "command": one_line(command, 2_000) if failed.can_replay else "",
    }


def _beside(path: str, folder: PurePosixPath) -> str:
    """A path relative to a folder, if it lies below."""
    found = PurePosixPath(path)
    return one_line(str(found.relative_to(folder) if found.is_relative_to(folder) else found))


def _by_importance(trials: Sequence[TrialFacts]) -> list[TrialFacts]:
    """Those that are not ok: the first of each cell and signature, then the second of each, ..."""
    groups: dict[tuple[CellKey, Signature | None], list[TrialFacts]] = {}
    for facts in trials:
        if facts.outcome != "ok":
            groups.setdefault((facts.key, facts.signature), []).append(facts)
    return [facts for same in zip_longest(*groups.values()) for facts in same if facts is not None]


def _texts(failed: FailedTrial, results: Path) -> list[tuple[str, str]]:
    """Headings and texts. Nothing outside of the results directory is read."""
    found = [(heading, text) for heading, text in failed.texts.items() if text]
    logs = [name for name in _LOGS if name in failed.artifacts]
    others = sorted(name for name, path in failed.artifacts.items() if path.endswith(".log") and name not in _LOGS)
    for name in (*logs, *others[:_MOST_LOGS]):
        path = inside(results, failed.artifacts[name])
        if path is not None and (tail := log_tail(path)).strip():
            found.append((one_line(f"end of {name}"), tail))
    return found


def link_to(relative: str, results: Path, output: Path) -> str:
    """A link from the page to a file below the results directory; empty for what leads out of it."""
    path = inside(results, relative)
    if path is None:
        return ""
    shown = Path(os.path.relpath(path, output.parent.resolve()))
    return quote(f"./{shown.as_posix()}", errors="replace")


def _between_cells(material: Material, labels: Mapping[CellKey, str]) -> list[tuple[str, str, list[str]]]:
    """What differs in the environment of each cell from its baseline's."""
    rows = []
    for key, base in material.triage.baselines().of.items():
        found = differences(material.environments[base], material.environments[key])
        texts = [one_line(str(each)) for each in found[:_MOST_DIFFERENCES]]
        texts += _more(len(found) - _MOST_DIFFERENCES, "{} more in the trial files")
        rows.append((labels[key], labels[base], texts))
    return rows


def _steps(material: Material, labels: Mapping[CellKey, str]) -> list[str]:
    """A chart for each workload: the steps of different ones have nothing in common."""
    by_cell: dict[CellKey, list[TrialFacts]] = {key: [] for key in labels}
    for facts in material.trials:
        by_cell[facts.key].append(facts)
    groups: dict[tuple[str, str], list[tuple[str, list[TrialFacts]]]] = {}
    for key, trials in by_cell.items():
        groups.setdefault((key.test, key.workload), []).append((labels[key], trials))
    return [chart for cells in groups.values() if (chart := charts.step_times(cells)) is not None]


def _reach(table: Table) -> tuple[float, float] | None:
    """Both ends of a scale on which all differences lie with their intervals."""
    intervals = [row.comparison.interval for row in table.rows if row.comparison is not None]
    if not intervals:
        return None
    ends = max(-each.low for each in intervals), max(each.high for each in intervals)
    low, high = (min((reach for reach in _REACHES if reach >= end), default=1.0) for end in ends)
    return -low, high


def _evidence(material: Material, table: Table, labels: Mapping[CellKey, str]) -> list[dict[str, Any]]:
    """How failures have added up over the run, for each cell beside its baseline; empty where all trials are ok."""
    orders: dict[CellKey, list[tuple[float, TrialFacts]]] = {key: [] for key in labels}
    for order, facts in enumerate(material.trials, 1):
        orders[facts.key].append((order / len(material.trials), facts))
    if all(facts.outcome == "ok" for facts in material.trials):
        return []
    most = max(row.cell.failures for row in table.rows)
    of = material.triage.baselines().of
    panels = []
    for row in [row for row in table.rows if row.cell.key in of or row.cell.key not in of.values()]:
        base = table.row(of[row.cell.key]).cell if row.cell.key in of else None
        panels.append(
            {
                "label": labels[row.cell.key],
                "kind": row.verdict.kind,
                "failed": f"{row.cell.failures} of {row.cell.counted}",
                "own": charts.added_up(orders[row.cell.key], most),
                "lost": charts.lost(orders[row.cell.key]),
                "base_failed": f"{base.failures} of {base.counted}" if base else "",
                "base": charts.added_up(orders[base.key], most) if base else "",
            }
        )
    return panels[: charts.MOST_CELLS]
