"""Runs a trial that differs from others again, to find the operator that makes the difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
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
from pytest_aorta.common.texts import identifier, printable
from pytest_aorta.replay import REPLAY, Replay, read_record
from pytest_aorta.triage.columns import counted
from pytest_aorta.triage.divergence import Divergence, divergences
from pytest_aorta.trial_runner import TrialRunner
from pytest_aorta.workspace.atomic import write_json
from pytest_aorta.workspace.paths import TrialPaths

if TYPE_CHECKING:
    from pytest_aorta.plugin.run import Run
    from pytest_aorta.triage.divergence import Traced
    from pytest_aorta.triage.verdicts import Triage
    from pytest_aorta.trials.spec import TrialSpec


class Zoom:
    """Of one run, whose trials are over.

    Attributes:
        lines: what the terminal shows.
        found: the same as data.
    """

    def __init__(self, run: Run, triage: Triage, specs: Mapping[tuple[str, str, int], TrialSpec]) -> None:
        self._run, self._specs = run, specs
        self.lines: list[str] = []
        self.found: list[dict[str, Any]] = []
        self._runner: TrialRunner | None = None
        self._number = 0
        self._triage = triage
        self._trials = int(load(run.selection.collect, run.registry)["divergence"].given["zoom"])

    def compare(self, *, may_run: bool) -> None:
        """Compare all cells, and zoom where they differ first: once within a cell, and once between two.

        ``may_run``: whether trials may be run again.
        """
        cells = [(cell.key, cell.finished) for cell in self._triage.cells]
        zoomed: set[bool] = set()
        try:
            for divergence in divergences(cells, self._run.results, self._triage.baselines().of):
                self.lines += divergence.lines()
                plain = divergence.to_plain()
                is_between = divergence.of is not None
                if may_run and self._trials and divergence.first is not None and is_between not in zoomed:
                    zoomed.add(is_between)
                    sentence, data = self._zoom(divergence)
                    self.lines.append(f"  {sentence}")
                    plain["zoom"] = {"sentence": sentence, **data}
                self.found.append(plain)
        finally:
            if self._runner is not None:
                self._runner.close()

    def _zoom(self, divergence: Divergence) -> tuple[str, Mapping[str, Any]]:
        assert divergence.first is not None
        reference, other, place = divergence.first
        why_not = self._hindrance(reference, other, place)
        if why_not:
            return f"the operator was not looked for: {why_not}", {}
        self._say(f"{other.facts.key.cell}, trial {other.facts.index}: looking for the operator in {place.text(2)}")
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

    def _say(self, text: str) -> None:
        terminal = self._run.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and self._run.config.get_verbosity() >= 0:
            terminal.ensure_newline()
            terminal.write_line(printable(f"aorta: {text}"))

    def _hindrance(self, reference: Traced, other: Traced, place: Place) -> str:
        if reference.trial.tolerance is not None:
            return "that takes mode=hash"
        if place.event.startswith("initial:"):
            return "the parameters differ before the first step, so that the seed does not decide on them"
        if self._run.selection.resources.hosts:
            return "that takes trials of this host"
        if ":" in str(self._run.results.absolute()) or "," in str(self._run.results.absolute()):
            return "the path of the results has a colon or comma"
        if any(self._spec(each) is None for each in (reference, other)):
            return "the trials were not started by this run"
        return ""

    def _spec(self, traced: Traced) -> TrialSpec | None:
        key = traced.facts.key
        return self._specs.get((key.workload, key.cell, traced.facts.index))

    def _record(self, traced: Traced, at: Mapping[str, Any]) -> Path:
        """Run a trial again, with operators recorded at a place; the folder of what it has recorded."""
        spec = self._spec(traced)
        assert spec is not None
        results = self._run.results
        folder = PurePosixPath(REPLAY, "divergence", identifier(spec.workload.name), identifier(spec.cell))
        paths = TrialPaths(folder / f"trial_{self._number}.json")
        self._number += 1
        file = (results / folder / f"at_{self._number}.json").absolute()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, dict(at))
        spec = replace(spec, collect=(f"divergence:at={file}",))
        if self._runner is None:
            selection = replace(self._run.selection, resume=False)
            self._runner = TrialRunner(selection, results, self._run.runner.store.stamp)
        trial = self._runner.start(spec, paths)
        try:
            record = trial.finish()
        except KeyboardInterrupt:
            trial.interrupt("KeyboardInterrupt")
            trial.finish()
            raise
        original = results / traced.facts.file
        self._runner.store.write(paths, Replay(original, read_record(original), spec).compared(record).to_dict())
        return paths.folder_in(results) / FOLDER / "divergence"
