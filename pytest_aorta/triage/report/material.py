"""What a report is made of: collected record by record, so that thousands of them need not be held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_aorta.triage.compare.environments import Environments, Installed
from pytest_aorta.triage.facts import CellKey, TrialFacts
from pytest_aorta.triage.reading import Results, triage_in_order
from pytest_aorta.triage.report.evidence import Evidence, evidence_of
from pytest_aorta.triage.report.safe_text import one_line
from pytest_aorta.triage.settings import TriageSettings
from pytest_aorta.triage.table import Triage
from pytest_aorta.triage.wording import counted


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
    evidence: dict[str, Evidence]
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
    evidence: dict[str, Evidence] = {}
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
