"""Which cells need no more trials, found while trials run."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_aorta.triage.baselines import Baselines
from pytest_aorta.triage.cells import CellStatistics
from pytest_aorta.triage.checks.mitigations import effects
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.statistics.multiplicity import holm
from pytest_aorta.triage.statistics.sequential import SequentialComparison
from pytest_aorta.triage.table import Triage
from pytest_aorta.triage.verdicts import Comparison, verdict_of

#: After so many trials of which none has come to its main work, a cell is not tried any more.
NOT_RUN = 3

#: After so many trials that count, it is known which variables they have.
SEEN = 3


class Decisions:
    """Cells that are decided, and those whose trials have ended for it. What is decided once stays so.

    All evidence is sequential, so that it does not matter how often one looks. The level is shared by all cells of a
    baseline from the beginning (Holm over their p values so far, 1 for a cell without any), so that a decision is never
    taken back when another cell has its first trials.
    """

    def __init__(self, triage: Triage) -> None:
        self._triage = triage
        #: What is known of each cell against its baseline.
        self._found: dict[CellKey, tuple[CellKey, SequentialComparison]] = {}
        #: What was decided of a cell, in words.
        self.decided: dict[CellKey, str] = {}
        #: Cells of which no more trials are needed, and why.
        self.stopped: dict[CellKey, str] = {}

    def update(self, touched: CellKey) -> bool:
        """Look at a cell that has a new trial, and at those that are compared with it; whether any has stopped."""
        before = len(self.stopped)
        cells = {trials.key: trials.statistics for trials in self._triage.cells}
        self._decide_absence(cells[touched])
        baselines = self._triage.baselines()
        self._decide_sameness(cells[touched], baselines, cells)
        for baseline in {touched, baselines.of.get(touched, touched)}:
            self._compare(baseline, touched, baselines, cells)
        self._stop(baselines, cells)
        return len(self.stopped) > before

    def _decide_absence(self, cell: CellStatistics) -> None:
        if cell.did_not_run and cell.total >= NOT_RUN:
            self.decided.setdefault(cell.key, f"did not run ({cell.total} of {cell.total} trials)")

    def _decide_sameness(
        self, cell: CellStatistics, baselines: Baselines, cells: Mapping[CellKey, CellStatistics]
    ) -> None:
        """A cell with the variables of its baseline is that baseline; looked at once, as it costs more than the rest.

        One whose variables are merely named by nothing that is loaded goes on, because that is a guess.
        """
        base = baselines.of.get(cell.key)
        if base is None or cell.counted != SEEN or not cells[base].counted:
            return
        effect = effects(cells, {cell.key: base})[cell.key]
        if effect.is_second_baseline:
            self.decided.setdefault(cell.key, f"second baseline ({effect.reason})")

    def _compare(
        self, baseline: CellKey, touched: CellKey, baselines: Baselines, cells: Mapping[CellKey, CellStatistics]
    ) -> None:
        """Decide what can be decided of the cells of a baseline; ``touched`` is one of them, or the baseline itself."""
        family = [key for key, base in baselines.of.items() if base == baseline]
        base = cells[baseline]
        for key in family:
            if key not in self.decided and touched in (key, baseline) and cells[key].counted and base.counted:
                self._found[key] = baseline, self._triage.compare(key, baseline)
        found = {key: self._found[key][1] for key in family if key in self._found and self._found[key][0] == baseline}
        adjusted = holm([found[key].p if key in found else 1.0 for key in family])
        for key, p_adjusted in zip(family, adjusted, strict=True):
            if key in found and key not in self.decided:
                cell, now = cells[key], found[key]
                difference = (cell.rate or 0.0) - (base.rate or 0.0)
                comparison = Comparison(baseline, difference, now.interval, now.p, p_adjusted, "sequential")
                kind = verdict_of(comparison, cell.failures, self._triage.settings.margin)
                if kind != "undecided":
                    counts = f"{cell.failures} of {cell.counted} against {base.failures} of {base.counted}"
                    self.decided[key] = f"{kind} ({counts})"

    def _stop(self, baselines: Baselines, cells: Mapping[CellKey, CellStatistics]) -> None:
        """Stop what is decided, and baselines, as soon as no other cell needs more trials of them."""
        compared_with = set(baselines.of.values())
        for key, base in baselines.of.items():
            if key not in self.decided and base in self.decided and cells[base].did_not_run:
                self.stopped.setdefault(key, f"not to be decided: its baseline {base.cell} did not run")
        self._stop_inert(baselines, cells)
        needed = {base for key, base in baselines.of.items() if key not in self.decided and key not in self.stopped}
        for key in cells:
            if key in needed:
                continue
            if key in self.decided:
                self.stopped.setdefault(key, f"decided: {self.decided[key]}")
            elif key in compared_with and key not in baselines.of:
                self.stopped.setdefault(key, "decided: every cell that is compared with it")

    def _stop_inert(self, baselines: Baselines, cells: Mapping[CellKey, CellStatistics]) -> None:
        """Do not go on for the sake of cells alone that probably do nothing, when the others are decided."""
        for baseline in set(baselines.of.values()):
            family = [key for key, base in baselines.of.items() if base == baseline]
            waiting = [key for key in family if key not in self.decided and key not in self.stopped]
            if not waiting or len(waiting) == len(family) or any(cells[key].counted < SEEN for key in waiting):
                continue
            found = effects(cells, dict.fromkeys(waiting, baseline))
            if all(effect.is_inert for effect in found.values()):
                self.stopped |= {
                    key: f"inert? ({effect.reason}), and all others decided" for key, effect in found.items()
                }
