"""A results directory as one HTML file that needs nothing else."""

from __future__ import annotations

import hashlib
import html
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from string import ascii_uppercase
from typing import Any, NamedTuple
from urllib.parse import quote

from pytest_aorta._version import __version__
from pytest_aorta.common.texts import (
    ESCAPES,
    counted,
    first_names,
    printable,
    read_tail,
)
from pytest_aorta.probe.environment_facts import GPUS
from pytest_aorta.settings import RequestError
from pytest_aorta.triage import ReportSection, TriageSettings, columns
from pytest_aorta.triage.columns import COLUMNS, conclusions, rate_with_interval
from pytest_aorta.triage.environments import Environments, differences
from pytest_aorta.triage.facts import OUTCOMES, CellKey, StepSummary, TrialFacts
from pytest_aorta.triage.matrix import EarlierMatrix, escape_markdown, pipe_table
from pytest_aorta.triage.rates import Interval, wilson
from pytest_aorta.triage.reading import Results, run_again_by_outcome, triage_in_order
from pytest_aorta.triage.searches import SearchReport, searches_in
from pytest_aorta.triage.signatures import Signature
from pytest_aorta.triage.starts import CollectorOutput, Heat, sentences, with_replays
from pytest_aorta.triage.verdicts import check_baseline
from pytest_aorta.trials.tracebacks import stacks_excerpt, without_callers, without_runner
from pytest_aorta.workspace.atomic import write_text

#: Longest one-line text, in characters.
_LINE = 200

#: Lines and bytes shown from the end of a log or a traceback; and of a message.
TAIL_LINES, TAIL_BYTES = 40, 8_192
_MESSAGE_LINES, _MESSAGE_BYTES = 12, 1_500

_CUT = "\N{HORIZONTAL ELLIPSIS}"

#: Bytes of all long texts of a page, as HTML. When they are spent, trials only have headlines and files.
BUDGET = 2_400_000

#: Limits: entries of a failure, differences, links, names and warnings of the head, places.
_MOST_ENTRIES, _MOST_DIFFERENCES, _MOST_LINKS, _MOST_NAMES, _MOST_WARNINGS, _MOST_SHARES = 8, 15, 24, 6, 20, 16

#: Columns of the table of cells and signatures, one per way to fail.
_MOST_COLUMNS = 8

#: Possible ends of the scale of differences.
_REACHES = (0.05, 0.1, 0.2, 0.5, 1.0)

#: Logs whose end is shown, in this order, and the number of further logs; all artifacts are linked.
_LOGS = ("stacks", "stderr", "stdout")
_MOST_LOGS = 6

#: For bug reports: rows of the table, and the facts that describe an installation.
_MOST_ROWS = 3
_VERSIONS = (GPUS, "NVIDIA driver", "AMD driver", "ROCm", "torch", "CUDA of torch", "NCCL", "RCCL", "Python", "kernel")


def check_output(output: Path) -> None:
    """Check that a report can be written to ``output``.

    Raises:
        RequestError: its folder does not exist or is not writable; it is a folder.
    """
    if os.path.isdir(output):  # Path.is_dir raises for impossible paths
        raise RequestError(f"{output} is a folder; expected the path of an HTML file")
    if not os.path.isdir(output.parent):
        raise RequestError(f"the folder {output.parent} does not exist; expected the path of an HTML file in one")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise RequestError(f"the folder {output.parent} cannot be written")


def write_report(
    results: Path,
    output: Path,
    settings: TriageSettings | None = None,
    *,
    baseline: str | None = None,
    sections: Sequence[ReportSection] = (),
) -> None:
    """Write one self-contained HTML file, atomically.

    ``settings``: by default those of the last run, from its ``matrix.json``. ``baseline``: in place of the settings'.
    ``sections``: of other plugins.

    Raises:
        RequestError: there are no trials; the baseline is no cell; the file cannot be written.
    """
    check_output(output)
    page = Report(results, settings or EarlierMatrix(results).settings, baseline).page(output)
    page["sections"] = [(one_line(each.title), [*map(bounded, each.paragraphs)]) for each in sections]
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_aorta.triage"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        # Texts of records are escaped; markup is ours.
        finalize=lambda value: visible_text(value) if type(value) is str else value,
    )
    for name in ("difference_with_interval", "p_value", "step_ms", "counted", "verdict_note"):
        environment.filters[name] = getattr(columns, name)
    environment.filters |= {"sort_value": _sort_value, "anchor": _anchor, "one_line": one_line}
    text = environment.get_template("page.html.j2").render(page=page)
    try:
        write_text(output, text)
    except (OSError, ValueError) as error:
        raise RequestError(f"{output}: {getattr(error, 'strerror', None) or error}") from None


def _sort_value(value: Any) -> Any:
    """The value that rows are sorted by; empty values come last."""
    value = value.median_ms if isinstance(value, StepSummary) else value
    return value if isinstance(value, int | float) else ""


# Texts written by others: invisible characters are shown as such, and the length is limited.


def visible_text(text: str) -> str:
    """Make all characters of a text visible and harmless; keeps lines."""
    text = ESCAPES.sub("", text)
    if "\r" in text:  # keep the last state of a progress bar, as a terminal does
        text = re.sub(r"[^\n]*\r(?=[^\n\r])", "", text.replace("\r\n", "\n")).replace("\r", "")
    return printable(text)


def one_line(text: str, longest: int = _LINE) -> str:
    """Put a text on one line; a long one is cut in the middle, because names differ at their ends."""
    line = " ".join(visible_text(text[: 20 * longest]).split())
    if len(line) <= longest:
        return line
    return f"{line[: longest * 2 // 3]}{_CUT}{line[-(longest // 3) + 1 :]}"


def bounded(text: str, most_lines: int = TAIL_LINES, most_bytes: int = TAIL_BYTES) -> str:
    """Keep the end of a text; a first line says how much is left out."""
    lines = visible_text(text).rstrip().split("\n")
    kept = "\n".join(lines[-most_lines:]).encode()[-most_bytes:].decode(errors="ignore")
    cut = len("\n".join(lines)) - len(kept)
    return f"[{_CUT} {cut:,} characters before]\n{kept}" if cut > 0 else kept


def log_tail(path: Path) -> str:
    """The last lines of a log; empty if it does not exist."""
    if not os.path.isfile(path):  # opening a pipe would wait for its writer
        return ""
    if path.name.endswith("stacks.log"):
        return visible_text("\n".join(stacks_excerpt(path)))
    lines = without_runner(visible_text(read_tail(path, TAIL_BYTES)).rstrip().split("\n"))
    kept = "\n".join(lines[-TAIL_LINES:])
    before = path.stat().st_size - len(kept.encode())
    is_cut = len(lines) > TAIL_LINES or path.stat().st_size > TAIL_BYTES
    return f"[{_CUT} {before:,} bytes before]\n{kept}" if is_cut else kept


def inside(folder: Path, relative: str) -> Path | None:
    """The path of a file below ``folder``; ``None`` if it leads out of it, as records may come from others."""
    try:
        path = (folder / relative).resolve()
        return path if path.is_relative_to(folder.resolve()) else None
    except (OSError, ValueError, RuntimeError):  # too long, with a NUL, a circle of links
        return None


def _more(number: int, what: str) -> list[str]:
    return [f"and {what.format(number)}"] if number > 0 else []


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(one_line, first_names(names, _MOST_NAMES)))


def _anchor(facts: TrialFacts) -> str:
    """Id of a trial's row: readable, and valid in a fragment."""
    return quote(str(PurePosixPath(facts.file).with_suffix("")), safe="/@+.~-_", errors="replace")


def _failed_trial(record: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Details of a trial that is not ok: its end, its settings, its texts and files."""
    failure, request = record.get("failure") or {}, record.get("request") or {}
    kind, message = failure.get("type") or failure.get("signal") or "", failure.get("message") or ""
    text = message if not kind or kind in message else f"{kind}: {message}"
    headline = one_line(text.strip().partition("\n")[0])
    message = bounded(text, _MESSAGE_LINES, _MESSAGE_BYTES)
    where, status = "", record["exit_status"].replace("_", " ")
    if failure:
        rank = f", rank {failure['rank']}" if failure.get("rank") is not None else ""
        rank += f" ({failure['confidence']})" if rank and failure.get("confidence") == "likely" else ""
        code = f" {failure['exit_code']}" if failure.get("kind") == "exit_code" and failure.get("exit_code") else ""
        where = f"{failure.get('kind', '')}{code} in {failure.get('phase', '')}{rank}".replace("_", " ")
    entries = record["result"].get("failure_details") or []
    details = [
        ", ".join(f"{key}: {value}" for key, value in entry.items() if key not in ("traceback", "at"))
        for entry in entries[:_MOST_ENTRIES]
    ]
    details += _more(len(entries) - _MOST_ENTRIES, "{} more in the trial file")
    ranks = [rank for rank in record.get("ranks") or () if rank.get("failure")]
    for rank in ranks[:_MOST_ENTRIES]:
        collateral = " (because of another one)" if rank.get("collateral") else ""
        details.append(f"rank {rank.get('rank')}{collateral}: {rank['failure'].get('message', '')}")
    details += _more(len(ranks) - _MOST_ENTRIES, "{} more ranks in the trial file")
    overlay = sorted((request.get("overlay") or {}).items())  # secrets have no values in records
    texts = {
        "message": "" if message == headline else message,
        "details": "\n".join(one_line(text, 400) for text in details),
        "variables that were set": "\n".join(one_line(f"{name}={value}", 1_000) for name, value in overlay),
        "traceback": bounded("\n".join(without_callers((failure.get("traceback") or "").rstrip().splitlines()))),
    }
    folder, files = PurePosixPath(file).parent, dict(record.get("artifacts") or {})
    for name, finding in (record.get("collected") or {}).items():
        said = [text for text in (finding["sentence"], *finding["problems"]) if text]
        texts[f"what {one_line(name)} found"] = bounded("\n".join(said))
        files |= {path: path for path in finding["artifacts"][:_MOST_ENTRIES]}
    return {
        "ended": where if where.startswith(status) else f"{status}: {where}".removesuffix(": "),
        "headline": headline or where,
        "texts": texts,
        "warnings": [one_line(text, 400) for text in (record.get("warnings") or ())[:_MOST_ENTRIES]],
        "artifacts": {name: str(folder / path) for name, path in files.items()},
        "can_replay": record.get("request") is not None,
    }


def label_cells(keys: Iterable[CellKey]) -> dict[CellKey, str]:
    """Give each cell a unique name, from the parts that differ between cells."""
    keys = list(keys)
    names = [name for name in ("test", "workload", "options") if len({getattr(key, name) for key in keys}) > 1]
    labels: dict[CellKey, str] = {}
    times: Counter[str] = Counter()
    for key in keys:
        parts = [getattr(key, name) for name in ("test", "workload", "cell", "options") if name in (*names, "cell")]
        label = one_line(" ".join(filter(None, parts))) or "(no name)"
        times[label] += 1
        labels[key] = label if times[label] == 1 else f"{label} #{times[label]}"
    return labels


class CellRate(NamedTuple):
    """What the macro of the picture of a rate needs."""

    rate: float
    rate_interval: Interval


class Report:
    """The content of a report, read record by record, so that thousands need not be in memory.

    Raises:
        RequestError: ``path`` does not exist or has no trial; there is no such baseline.
    """

    def __init__(self, path: Path, settings: TriageSettings | None = None, baseline: str | None = None) -> None:
        if baseline is not None:
            settings = replace(settings or TriageSettings(), baseline=baseline)
        results = Results(path)
        self.folder = results.folder
        self.searches = [*searches_in(self.folder)]
        trials: list[TrialFacts] = []
        #: Details of trials that are not ok, by file.
        self.failed: dict[str, dict[str, Any]] = {}
        self.environments: dict[CellKey, Environments] = {}
        self.hosts: Counter[str] = Counter()
        self.commands: Counter[str] = Counter()
        self.collected = CollectorOutput()
        for trial in results:
            facts, record = trial.facts, trial.record
            self.collected.add(trial, self.folder)
            trials.append(facts)
            self.environments.setdefault(facts.key, Environments(results.installed)).add(record)
            self.hosts[one_line(str(record.get("host") or "an unknown host"))] += 1
            config = record.get("config")
            command = config.get("command") if isinstance(config, Mapping) else None
            named = f"pytest --aorta-workload {shlex.quote(str(record.get('workload')))}"
            self.commands[one_line(str(command), 1_000) if command else one_line(named)] += 1
            if facts.outcome != "ok":
                self.failed[trial.file] = _failed_trial(record, trial.file)
        if not trials:
            raise results.nothing_found()
        self.collected.add_replays(self.folder)
        self.triage = triage_in_order(trials, settings)
        if baseline is not None:
            check_baseline(baseline, [(cell.key.cell, cell.mitigations) for cell in self.triage.cells], "--baseline")
        self.left_out: list[str] = []
        if results.unreadable:
            first, number = results.unreadable[0], counted(len(results.unreadable), "trial file")
            text = f"{number} could not be read; the first is {first.file}: {first.reason}"
            self.left_out.append(one_line(text, 500))
        if results.replays:
            why = "which trials are replayed depends on how they ended"
            self.left_out.append(f"{counted(results.replays, 'replay')} left out: {why}")
        self.left_out += map(one_line, run_again_by_outcome(self.folder, trials))
        #: In run order.
        self.trials = sorted(trials, key=lambda facts: (facts.started_at, facts.index, facts.file))
        self.table = with_replays(self.triage.table(), self.triage, self.folder)
        self.labels = label_cells(row.cell.key for row in self.table.rows)
        #: Ids of signatures, equal in all reports.
        self.ids = {
            facts.signature: f"s{hashlib.sha256(repr(facts.signature).encode(errors='replace')).hexdigest()[:8]}"
            for facts in self.trials
            if facts.signature is not None
        }

    def _searches(self) -> list[tuple[str, SearchReport, list[CellRate | None]]]:
        """What they are called, what they say, and rates for pictures."""
        return [
            (
                one_line(name),
                said,
                [
                    CellRate(row.failures / row.trials, wilson(row.failures, row.trials)) if row.trials > 0 else None
                    for row in said.rows
                ],
            )
            for name, said in self.searches
        ]

    def page(self, output: Path) -> dict[str, Any]:
        """The values for the templates."""
        rows, labels = self.table.rows, self.labels
        absolute, here = Path(os.path.abspath(self.folder)), Path.cwd()
        typed = str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
        ways = self._signatures()
        heat = ways[:_MOST_COLUMNS] if len(ways) > 1 and len(rows) > 1 else []
        if heat and len(ways) > _MOST_COLUMNS:
            heat.append({"id": "", "counts": sum((way["counts"] for way in ways[_MOST_COLUMNS:]), Counter[CellKey]())})
        by_cell: dict[CellKey, list[tuple[float, TrialFacts]]] = {key: [] for key in labels}
        for order, facts in enumerate(self.trials, 1):
            by_cell[facts.key].append((order / len(self.trials), facts))
        # One chart per workload: steps of different workloads are not comparable.
        groups: dict[tuple[str, str], list[tuple[str, list[TrialFacts]]]] = {}
        for key, trials in by_cell.items():
            groups.setdefault((key.test, key.workload), []).append((labels[key], [facts for _, facts in trials]))
        intervals = [row.comparison.interval for row in rows if row.comparison is not None]
        ends = max((-each.low for each in intervals), default=0.0), max((each.high for each in intervals), default=0.0)
        low, high = (min((reach for reach in _REACHES if reach >= end), default=1.0) for end in ends)
        tests = self.table.associations.tests if any(row.cell.failures for row in rows) else ()
        return {
            "searches": self._searches(),
            "title": _listed(sorted({row.cell.key.workload for row in rows})) or "no trials",
            "facts": [*self._facts(), ("results", one_line(typed))],
            "sentences": self._sentences(),
            "to_paste": self.to_paste(),
            "warnings": self._warnings(),
            "columns": [column for column in COLUMNS if "html" in column.formats and column.says_something(rows)],
            "rows": rows,
            "labels": labels,
            "ids": self.ids,
            "all_outcomes": OUTCOMES,
            "outcomes": list(dict.fromkeys(facts.outcome for facts in self.trials)),
            "reach": (-low, high) if intervals else None,
            "signatures": ways,
            "heat": heat,
            "trials": self._trials(output, typed),
            "where": sorted(tests, key=lambda test: not test.is_significant),
            "most_shares": _MOST_SHARES,
            "starts": self._starts(),
            "steps": [chart for cells in groups.values() if (chart := step_times(cells)) is not None],
            "evidence": self._evidence(by_cell),
            "health": self._health(),
            "most_drawn": MOST_CELLS,
            "environments": self._between_cells(),
            "method": next((row.comparison.method for row in rows if row.comparison is not None), "fixed"),
            "version": __version__,
        }

    def to_paste(self) -> str:
        """For a bug report, in Markdown: the conclusions, the clearest rows, the command, the versions."""
        clearest = sorted(self.table.rows, key=lambda row: (row.comparison is not None, row.p))[:_MOST_ROWS]
        kept = [column for column in COLUMNS if "terminal" in column.formats and column.says_something(clearest)]
        rows = [[self.labels[row.cell.key], *(column.text_of(row) for column in kept)] for row in clearest]
        rules = ["---", *("---" if column.left else "---:" for column in kept)]
        parts = [f"**{escape_markdown(sentence)}**" for sentence in self._sentences()]
        parts.append(pipe_table(["Cell", *(column.title for column in kept)], rules, rows))
        more = len(self.table.rows) - len(clearest)
        items = [f"and {counted(more, 'other cell')}"] if more else []
        ways = Counter(facts.signature.text for facts in self.trials if facts.signature is not None)
        items += [f"{number} x {one_line(text)}" for text, number in ways.most_common(_MOST_ROWS)]
        items += [f"command: {text}" for text, _ in self.commands.most_common(_MOST_ROWS)]
        everywhere = Environments()
        for environments in self.environments.values():
            everywhere.update(environments)
        by_name = {fact.name: counts for fact, counts in everywhere.facts().items()}
        for name in _VERSIONS:
            values = [value for value, _ in by_name.get(name, Counter()).most_common() if isinstance(value, str)]
            items += [f"{name}: {_listed(values)}"] if values else []
        items += [f"{name}: {text}" for name, text in self._facts() if name in ("trials", "started")]
        items += self.left_out
        parts.append("\n".join(f"- {escape_markdown(item)}" for item in [*items, f"pytest-aorta {__version__}"]))
        return "\n\n".join(parts) + "\n"

    def _facts(self) -> list[tuple[str, str]]:
        """Trials, hosts and times of the run."""
        matrix = EarlierMatrix(self.folder)
        missing = sum(matrix.planned.values()) - len(self.trials)
        left = f", {missing} more planned" if missing > 0 and not matrix.complete else ""
        numbers = f"{counted(len(self.trials), 'trial')} in {counted(len(self.triage.cells), 'cell')}{left}"
        facts = [("trials", numbers), ("host", _listed([name for name, _ in self.hosts.most_common()]))]
        times = [facts.started_at for facts in self.trials if facts.started_at]
        if times:
            first, last = (one_line(time[:16].replace("T", " ")) for time in (times[0], times[-1]))
            end = last[11:] if last[:10] == first[:10] else last
            facts.append(("started", f"{first} UTC" if first == last else f"{first} to {end} UTC"))
        return facts

    def _sentences(self) -> list[str]:
        """What searches say; after a later run, conclusions of the table; without comparisons, failure rates."""
        last = max((facts.started_at for facts in self.trials), default="")
        if answers := [f"{name}: {said.sentence}" for name, said in self.searches if not said.at or last <= said.at]:
            return [one_line(text, 600) for text in answers]
        said, rows = conclusions(self.table), self.table.rows
        for row in () if any(row.comparison is not None for row in rows) else rows[:_MOST_NAMES]:
            cell, what = row.cell, "no trial says anything about the workload."
            if cell.counted:
                numbers = f"{cell.failures} of {counted(cell.counted, 'trial')} failed"
                rate = rate_with_interval(cell.rate, cell.rate_interval)
                what = f"{numbers}, {rate}; there is nothing to compare with."
            said.append(f"{self.labels[cell.key]}: {what}")
        return [one_line(text, 600) for text in said]

    def _warnings(self) -> list[str]:
        """Warnings of the table, slower steps, variables without effect, and warnings of trials."""
        warnings = [*self.table.warnings]
        for row in self.table.rows:
            if row.is_slower and row.speed is not None and row.verdict.kind != "slower":
                label = self.labels[row.cell.key]
                warnings.append(f"{label}: {row.speed.text}; a fault of timing can hide in slower steps")
        warnings += dict.fromkeys(text for row in self.table.rows if row.effect for text in row.effect.sentences)
        for row in self.table.rows:
            for text, number in row.cell.tally("warnings").items():
                warnings.append(f"{self.labels[row.cell.key]}: {text} ({counted(number, 'trial')})")
        warnings += self.left_out
        more = len(warnings) - _MOST_WARNINGS
        return [one_line(text, 500) for text in warnings[:_MOST_WARNINGS]] + _more(more, counted(more, "more warning"))

    def _starts(self) -> list[dict[str, Any]]:
        """Findings of collectors by cell, and cells and trials that compute something else."""
        replayed = {each.key: each for each in self.table.replays}
        texts = {row.cell.key: list(sentences(row.cell, replayed.get(row.cell.key))) for row in self.table.rows}
        heats: dict[CellKey, list[Heat]] = {key: [] for key in texts}
        for heat in self.collected.bad.values():
            if heat.trial.key in heats:  # the replayed trial may not be here
                heats[heat.trial.key].append(heat)
        compared = self.collected.divergences(self.triage.cells, self.folder, self.triage.baselines().of)
        zooms = EarlierMatrix(self.folder).zooms if compared else {}
        for divergence, beside in compared:
            zoom = zooms.get(divergence.names, "")
            texts[divergence.key] += [text for text in (*divergence.lines(), zoom) if text]
            heats[divergence.key] += [beside] if beside is not None else []
        return [
            {"label": self.labels[key], "sentences": said, "heats": heats[key]} for key, said in texts.items() if said
        ]

    def _signatures(self) -> list[dict[str, Any]]:
        """All ways to fail, the most frequent first, with the first trials of each cell."""
        alike: dict[Signature, dict[CellKey, list[TrialFacts]]] = {}
        for facts in self.trials:
            if facts.signature is not None:
                alike.setdefault(facts.signature, {}).setdefault(facts.key, []).append(facts)
        ways: list[dict[str, Any]] = []
        for signature, by_cell in alike.items():
            kind = f"{signature.kind} in {signature.phase}".replace("_", " ") if signature.phase else signature.kind
            cells = []
            for key in self.labels:
                if trials := sorted(by_cell.get(key, ()), key=lambda facts: facts.index):
                    links = [(facts.index, _anchor(facts)) for facts in trials[:_MOST_LINKS]]
                    cells.append({"label": self.labels[key], "total": len(trials), "links": links})
            ways.append(
                {
                    "id": self.ids[signature],
                    "text": one_line(signature.text),
                    "short": one_line(signature.short),
                    "kind": one_line(", ".join(filter(None, (kind, signature.type, signature.role)))),
                    "total": sum(map(len, by_cell.values())),
                    "counts": Counter({key: len(trials) for key, trials in by_cell.items()}),
                    "cells": cells,
                }
            )
        ways.sort(key=lambda way: -way["total"])
        letters = [*ascii_uppercase[:_MOST_COLUMNS], *[""] * len(ways)]
        return [{**way, "letter": letter} for way, letter in zip(ways, letters, strict=False)]

    def _trials(self, output: Path, typed: str) -> list[tuple[TrialFacts, dict[str, Any] | None]]:
        """All trials, with details if not ok; ``typed``: the results directory as typed in commands."""
        # Give texts to the first failure of each cell and signature, then to the second of each, until BUDGET is spent.
        alike: dict[tuple[CellKey, Signature | None], list[TrialFacts]] = {}
        for facts in self.trials:
            if facts.outcome != "ok":
                alike.setdefault((facts.key, facts.signature), []).append(facts)
        texts: dict[str, list[tuple[str, str]] | None] = {}
        budget = BUDGET
        for facts in (facts for same in zip_longest(*alike.values()) for facts in same if facts is not None):
            own = self._texts(self.failed[facts.file]) if budget > 0 else None
            budget -= sum(len(html.escape(text).encode(errors="replace")) for _, text in own or ())
            texts[facts.file] = own if budget > 0 else None
        trials: list[tuple[TrialFacts, dict[str, Any] | None]] = []
        for facts in self.trials:
            detail = None
            if failed := self.failed.get(facts.file):
                replay = f"pytest --aorta-replay {shlex.quote(str(PurePosixPath(typed, facts.file)))}"
                detail = {
                    "failed": failed,
                    "texts": texts[facts.file],
                    "files": list(self._files(facts.file, failed["artifacts"].values(), output)),
                    "command": one_line(replay, 2_000) if failed["can_replay"] else "",
                }
            trials.append((facts, detail))
        return trials

    def _files(self, file: str, artifacts: Iterable[str], output: Path) -> Iterator[tuple[str, str]]:
        """Names of a trial's files with links; no link for a path that leads out of the results directory."""
        folder = PurePosixPath(file).parent
        for path in map(PurePosixPath, (file, *artifacts)):
            name = one_line(str(path.relative_to(folder) if path.is_relative_to(folder) else path))
            there = inside(self.folder, str(path))
            link = "" if there is None else Path(os.path.relpath(there, output.parent.resolve())).as_posix()
            yield name, quote(f"./{link}", errors="replace") if link else ""

    def _texts(self, failed: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Headings and texts of a failed trial. Files outside of the results directory are not read."""
        texts = [(heading, text) for heading, text in failed["texts"].items() if text]
        artifacts = failed["artifacts"]
        logs = [name for name in _LOGS if name in artifacts]
        others = sorted(name for name, path in artifacts.items() if path.endswith(".log") and name not in _LOGS)
        for name in (*logs, *others[:_MOST_LOGS]):
            path = inside(self.folder, artifacts[name])
            if path is not None and (tail := log_tail(path)).strip():
                texts.append((one_line(f"end of {name}"), tail))
        return texts

    def _between_cells(self) -> list[tuple[str, str, list[str]]]:
        """Differences between the environments of each cell and its baseline."""
        rows = []
        for key, base in self.triage.baselines().of.items():
            differing = differences(self.environments[base], self.environments[key])
            texts = [one_line(str(each)) for each in differing[:_MOST_DIFFERENCES]]
            texts += _more(len(differing) - _MOST_DIFFERENCES, "{} more in the trial files")
            rows.append((self.labels[key], self.labels[base], texts))
        return rows

    def _health(self) -> list[dict[str, Any]]:
        """Temperature and clocks of the trials over the run, with their scale; none without readings of two trials."""
        curves = []
        for what, unit, values in (
            ("Temperature", "\N{DEGREE SIGN}C", [facts.temperature_c for facts in self.trials]),
            ("Clock", " MHz", [facts.clock_mhz for facts in self.trials]),
        ):
            known = [value for value in values if value is not None]
            if len(known) < 2:
                continue
            low, high = min(known), max(known)
            spots = [
                (100 * order / len(values), 42 - 40 * (value - low) / ((high - low) or 1), facts.is_failure)
                for order, (value, facts) in enumerate(zip(values, self.trials, strict=True), 1)
                if value is not None
            ]
            curves.append(
                {
                    "label": f"{what}: {low:.0f} to {high:.0f}{unit}",
                    "line": "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in spots),
                    "failed": "".join(f"M{x:.1f} {y - 3:.1f}v6" for x, y, failed in spots if failed),
                }
            )
        return curves

    def _evidence(self, by_cell: Mapping[CellKey, list[tuple[float, TrialFacts]]]) -> list[dict[str, Any]]:
        """Failures over the run for each cell and its baseline; empty if all trials are ok."""
        if all(facts.outcome == "ok" for facts in self.trials):
            return []
        most = max(row.cell.failures for row in self.table.rows)
        of = self.triage.baselines().of
        panels = []
        for row in self.table.rows:
            key, cell = row.cell.key, row.cell
            if key not in of and key in of.values():
                continue
            base = self.table.row(of[key]).cell if key in of else None
            lost = (f"M{100 * at:.1f} 45.5V50" for at, facts in by_cell[key] if not facts.is_counted)
            panels.append(
                {
                    "label": self.labels[key],
                    "kind": row.verdict.kind,
                    "failed": f"{cell.failures} of {cell.counted}",
                    "own": added_up(by_cell[key], most),
                    "lost": "".join(lost),
                    "base_failed": f"{base.failures} of {base.counted}" if base else "",
                    "base": added_up(by_cell[base.key], most) if base else "",
                }
            )
        return panels[:MOST_CELLS]


# Pictures, as SVG.

#: Width of a chart, and free space on both sides.
_WIDTH, _MARGIN = 760, 20

#: Characters of a label.
_LONGEST = 100

#: Cells of a chart, at most; a longer chart is unreadable.
MOST_CELLS = 60

#: Trials of a cell with a mark in the chart of step times, at most.
_MOST_MARKS = 40

#: The scale is logarithmic if the longest step is more than so many times the shortest.
_LOGARITHMIC = 12

#: Marks of a scale, at most.
_MOST_TICKS = 10


def step_times(cells: Sequence[tuple[str, Sequence[TrialFacts]]]) -> dict[str, Any] | None:
    """Positions in a chart of step times, one row per cell; ``None`` if no cell has step times.

    A line covers 99 % of the steps, a bar 80 %; an upright line is their median, each dot the median of a trial.
    """
    import numpy as np

    rows: list[tuple[str, list[float], list[float]]] = []
    for label, trials in cells:
        if steps := [facts.steps for facts in trials if facts.steps is not None]:
            pooled = np.concatenate([np.asarray(each.sorted_ms) for each in steps])
            medians = sorted(each.median_ms for each in steps)
            marked = np.linspace(0, len(medians) - 1, min(len(medians), _MOST_MARKS)).round().astype(int)
            ends = np.quantile(pooled, [0.005, 0.1, 0.5, 0.9, 0.995]).tolist()
            rows.append((label, ends, [medians[index] for index in marked]))
    if not rows:
        return None
    rows = rows[:MOST_CELLS]
    values = [value for _, ends, marks in rows for value in (*ends, *marks)]
    low, high = min(values), max(values)
    is_log = high > _LOGARITHMIC * low
    if low == high:
        low, high = 0.95 * low, 1.05 * high
    scale: Callable[[float], float] = math.log if is_log else float

    def x(value: float) -> float:
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * (scale(value) - scale(low)) / (scale(high) - scale(low))

    return {
        "rows": [
            (
                label if len(label) <= _LONGEST else f"{label[: _LONGEST - 13]}{_CUT}{label[-12:]}",
                [round(x(value), 1) for value in ends],
                [round(x(value), 1) for value in marks],
            )
            for label, ends, marks in rows
        ],
        "ticks": [(round(x(at), 1), f"{at:.10g}") for at in _ticks(low, high, is_log=is_log)],
        "unit": "ms per step" + (", logarithmic" if is_log else ""),
    }


def _ticks(low: float, high: float, *, is_log: bool) -> list[float]:
    if is_log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        factors = (1, 2, 5) if 3 * len(powers) <= 2 * _MOST_TICKS else (1,)
        return [at for power in powers for factor in factors if low <= (at := factor * 10.0**power) <= high]
    unit = 10.0 ** math.floor(math.log10((high - low) / _MOST_TICKS))
    step = next(unit * factor for factor in (1, 2, 5, 10) if (high - low) / (unit * factor) <= _MOST_TICKS)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def added_up(trials: Sequence[tuple[float, TrialFacts]], most: int) -> str:
    """SVG path of a line that rises by one at each failure and ends at the last counted trial.

    ``trials``: with their positions in the run, from 0 to 1. ``most``: number of failures at the top of the picture,
    which is 100 wide with its ground at 44.
    """
    path, failures, last = "M0 44", 0, None
    for last, facts in ((at, facts) for at, facts in trials if facts.is_counted):
        if facts.is_failure:
            failures += 1
            path += f"H{100 * last:.1f}V{44 - 42 * failures / most:.1f}"
    return "" if last is None else f"{path}H{100 * last:.1f}"
