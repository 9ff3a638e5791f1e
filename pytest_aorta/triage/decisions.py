"""Which cells need no more trials, in a run that ends with its verdicts."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_aorta.triage import DECIDED, Stop
from pytest_aorta.triage.cells import CellStatistics, effects
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.power import power_spent
from pytest_aorta.triage.verdicts import Baselines, Triage

#: A cell ends after so many trials if none has reached its main work.
NOT_RUN = 3

#: After so many counted trials, their variables are known.
SEEN = 3

#: Why no more trials of a baseline are needed.
BASELINE_DECIDED = "decided: every cell that is compared with it"


class Decisions:
    """Cells that are decided, and cells whose trials have ended for it. A decision is never taken back.

    All evidence is sequential, so it does not matter how often one looks. All cells of a baseline share the level from
    the beginning, so a cell with its first trials does not change earlier decisions.
    """

    def __init__(self, triage: Triage, goal: Stop = DECIDED, before: Mapping[CellKey, str] | None = None) -> None:
        self._triage = triage
        self._goal = goal
        #: Why each cell is decided. ``before``: those of earlier trials, as in ``stopped``.
        self.decided = {key: why.removeprefix("decided: ") for key, why in (before or {}).items()}
        #: Cells that need no more trials, and why.
        self.stopped: dict[CellKey, str] = dict(before or {})

    def update(self, touched: CellKey) -> bool:
        """Judge the cell with a new trial, and cells compared with it; return whether any has stopped."""
        before = len(self.stopped)
        cells = {trials.key: trials.statistics for trials in self._triage.cells}
        cell = cells[touched]
        if self._goal.failures is not None and cell.failures >= self._goal.failures:
            self.decided.setdefault(touched, f"failures={self._goal.failures}")
            self.stopped.setdefault(touched, f"decided: {self.decided[touched]}")
        if self._goal.decided:
            baselines = self._triage.baselines()
            if cell.did_not_run and cell.total >= NOT_RUN:
                self.decided.setdefault(touched, f"did not run ({cell.total} of {cell.total} trials)")
            base = baselines.of.get(touched)
            # Asked once, as it costs more than the rest. "Named by nothing that is loaded" is a guess and ends no cell.
            if base is not None and cell.counted == SEEN and cells[base].counted:
                effect = effects(cells, {touched: base})[touched]
                if effect.is_second_baseline:
                    self.decided.setdefault(touched, f"second baseline ({effect.reason})")
            for baseline in {touched, base or touched}:
                self._decide_family(baseline, baselines, cells)
            self._stop(baselines, cells)
        return len(self.stopped) > before

    def _decide_family(self, baseline: CellKey, baselines: Baselines, cells: Mapping[CellKey, CellStatistics]) -> None:
        family, base = baselines.family(baseline), cells[baseline]
        begun = [key for key in family if cells[key].counted and base.counted]
        judged = self._triage.compare(begun, baseline, len(family))
        speeds = self._triage.speeds(begun, baseline, len(family), sequential=True) if self._goal.speed else ()
        for key, speed in zip(begun, speeds, strict=False):
            if speed.kind in ("slower", "faster", "similar") and not (cells[key].failures or base.failures):
                self.decided.setdefault(key, f"{speed.kind} ({speed.change})")
        for key, (_, verdict) in zip(begun, judged, strict=True):
            cell = cells[key]
            is_open = verdict.kind == "undecided"
            is_open |= verdict.kind == "no cure" and self._goal.equivalence and not verdict.is_same
            # A cell without a failure may need a few more trials to be called a cure.
            if not is_open and not (verdict.kind == "reduces" and not cell.failures):
                counts = f"{cell.failures} of {cell.counted} against {base.failures} of {base.counted}"
                self.decided.setdefault(key, f"{verdict.kind}{'?' * verdict.is_likely} ({counts})")
            elif self._goal.power and (spent := power_spent(cells, key, baseline, len(family), self._triage.settings)):
                self.decided.setdefault(key, spent)

    def _stop(self, baselines: Baselines, cells: Mapping[CellKey, CellStatistics]) -> None:
        """Stop decided cells, and baselines that no other cell needs any more."""
        for key, base in baselines.of.items():
            if key not in self.decided and base in self.decided and cells[base].did_not_run:
                self.stopped.setdefault(key, f"not to be decided: its baseline {base.cell} did not run")
        fixed = [key for key, why in self.decided.items() if why.startswith("fixes")] if self._goal.first_fix else []
        for key in cells if fixed else ():
            self.stopped.setdefault(key, f"the first fix is found: {fixed[0].cell}")
        # If only cells that are probably inert are undecided, stop them.
        for baseline in baselines.cells:
            family = baselines.family(baseline)
            waiting = [key for key in family if key not in self.decided and key not in self.stopped]
            if not waiting or len(waiting) == len(family) or any(cells[key].counted < SEEN for key in waiting):
                continue
            judged = effects(cells, dict.fromkeys(waiting, baseline))
            if all(effect.is_inert for effect in judged.values()):
                self.stopped |= {
                    key: f"inert? ({effect.reason}), and all others decided" for key, effect in judged.items()
                }
        compared_with = set(baselines.of.values())
        needed = {base for key, base in baselines.of.items() if key not in self.decided and key not in self.stopped}
        for key in cells:
            if key in needed:
                continue
            if key in self.decided:
                self.stopped.setdefault(key, f"decided: {self.decided[key]}")
            elif key in compared_with and key not in baselines.of:
                self.stopped.setdefault(key, BASELINE_DECIDED)
