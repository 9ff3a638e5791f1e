"""Runs a trial that differs from others again, to find the operator that makes the difference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.collectors.contract import FOLDER, load
from pytest_aorta.collectors.divergence import (
    Place,
    compare_operators,
    compare_trials,
    described,
    read_operators,
    read_trial,
    trace_file,
)
from pytest_aorta.replay import ReplayError
from pytest_aorta.triage.columns import counted
from pytest_aorta.triage.starts import Divergence, divergences
from pytest_aorta.workspace.atomic import write_json
from pytest_aorta.workspace.paths import REPLAY

if TYPE_CHECKING:
    from pytest_aorta.plugin.replays import Again
    from pytest_aorta.triage.starts import Traced
    from pytest_aorta.triage.verdicts import Triage


class Zoom:
    """Of one run, whose trials are over.

    Attributes:
        found: which trials differ, with sentences, and what the zoom has found.
    """

    def __init__(self, again: Again, triage: Triage) -> None:
        self._again, self._run = again, again.run
        self.found: list[dict[str, Any]] = []
        self._number = 0
        self._triage = triage
        self._trials = int(load(self._run.selection.collect, self._run.registry)["divergence"].given["zoom"])

    def compare(self, *, may_run: bool) -> None:
        """Compare all cells, and zoom where they differ first: once within a cell, and once between two.

        ``may_run``: whether trials may be run again.
        """
        cells = [(cell.key, cell.finished) for cell in self._triage.cells]
        zoomed: set[bool] = set()
        for divergence in divergences(cells, self._run.results, self._triage.baselines().of):
            plain = divergence.to_plain()
            self.found.append(plain)
            is_between = divergence.of is not None
            if may_run and self._trials and divergence.first is not None and is_between not in zoomed:
                zoomed.add(is_between)
                try:
                    sentence, data = self._zoom(divergence)
                except ReplayError as error:
                    sentence, data = f"the operator was not looked for: {error}", {}
                plain["lines"].append(f"  {sentence}")
                plain["zoom"] = {"sentence": sentence, **data}

    def _zoom(self, divergence: Divergence) -> tuple[str, Mapping[str, Any]]:
        assert divergence.first is not None
        reference, other, place = divergence.first
        why_not = self._hindrance(reference, other, place)
        if why_not:
            return f"the operator was not looked for: {why_not}", {}
        self._again.say(
            f"{other.facts.key.cell}, trial {other.facts.index}: looking for the operator in {place.text(2)}"
        )
        trace = trace_file(reference.folder, place.rank)
        for attempt in range(1, self._trials + 1):
            at = {"rank": place.rank, "after": place.after, "until": place.event}
            folder = self._record(other, {**at, "reference": str(trace)})
            seen = read_operators(folder)
            if seen is None:  # it may have differed elsewhere: then that is looked at
                compared = compare_trials({"": reference.trial, "again": read_trial(folder)})
                place = compared.places.get("again", place)
                continue
            for _ in range(self._trials):
                folder = self._record(reference, {**at, "ordinal": seen.ordinal})
                control, again = read_operators(folder), read_trial(folder)
                known = {"": reference.trial, "again": again.up_to(seen.ordinal)}
                if control is not None and not compare_trials(known).places:
                    break
            else:
                return f"the operator was not found: no trial like {reference.facts.index} was seen again", {}
            finding = compare_operators(control, seen, place.after)
            data = {"rank": place.rank, "step": seen.ordinal + 1, "until": place.event, "after": place.after}
            where = f"run again, in step {seen.ordinal + 1}, {described(place.event)}"
            return f"{where}: {finding.sentence}", {**data, **finding.data, "trials": attempt + 1}
        return (
            f"the operator was not found: {counted(self._trials, 'trial')} run again did not differ where they were "
            f"looked at; divergence:zoom={4 * self._trials} tries more",
            {"trials": self._trials},
        )

    def _hindrance(self, reference: Traced, other: Traced, place: Place) -> str:
        if reference.trial.tolerance is not None:
            return "that takes mode=hash"
        if place.event.startswith("initial:"):
            return "the parameters differ before the first step, so that the seed does not decide on them"
        if self._run.selection.resources.hosts:
            return "that takes trials of this host"
        if ":" in str(self._run.results.absolute()) or "," in str(self._run.results.absolute()):
            return "the path of the results has a colon or comma"
        return ""

    def _record(self, traced: Traced, at: Mapping[str, Any]) -> Path:
        """Run a trial again, with operators recorded at a place; the folder of what it has recorded."""
        results = self._run.results
        self._number += 1
        file = (results / REPLAY / "divergence" / f"at_{self._number}.json").absolute()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, dict(at))
        replay = self._again.replay(traced.facts, (f"divergence:at={file}",), "divergence")
        for _ in self._again.results([replay]):
            pass
        return replay.paths.folder_in(results) / FOLDER / "divergence"
