"""What gates make of a run: its exit status, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_aorta.plugin.failure_text import printable
from pytest_aorta.plugin.summary.side_by_side import counted

if TYPE_CHECKING:
    from pytest_aorta.triage.facts import Outcome
    from pytest_aorta.triage.gates import Gate, GateResult
    from pytest_aorta.triage.verdicts import Triage


class JudgedTrials:
    """The trials of a run, or of one action of a recipe, and the gates that judge them.

    Args:
        gates: on these trials.
        triage: of these trials.
        action: of the recipe; empty for the trials that the options ask for.
        expects_failures: whether the item of a trial that is ok fails.
    """

    def __init__(self, gates: Sequence[Gate], triage: Triage, action: str = "", expects_failures: bool = False) -> None:
        self.gates = gates
        self.triage = triage
        self.action = action
        self._expects_failures = expects_failures
        #: How many failed reports the items of trials have, by the ids of the trials.
        self._failed: Counter[tuple[str, str]] = Counter()
        self.results: list[GateResult] = []

    def see(self, report: pytest.TestReport) -> None:
        """Remember a failed report of a trial, which by itself makes the run no failure."""
        properties = dict(report.user_properties)
        if report.failed and report.when != "teardown" and "aorta_trial_id" in properties:
            self._failed[str(properties["aorta_workload"]), str(properties["aorta_trial_id"])] += 1

    @property
    def has_begun(self) -> bool:
        """Whether there are gates, and trials that they are about."""
        return bool(self.gates) and any(cell.has_begun for cell in self.triage.cells)

    def judge(self) -> int:
        """Judge each gate; how many failed reports are of trials that they judge."""
        from pytest_aorta.triage.gates import judge

        self.results = judge(self.gates, self.triage.table())
        judged: set[Outcome] = {"failed", "timeout"}
        if self._expects_failures:
            judged.add("ok")
        if any(gate.value == "infrastructure" for gate in self.gates):
            judged |= {"infrastructure", "did not run"}
        return sum(
            self._failed[facts.key.workload, facts.trial_id]
            for cell in self.triage.cells
            for facts in cell.finished
            if facts.outcome in judged
        )


def _without(group: JudgedTrials, others: Sequence[JudgedTrials]) -> JudgedTrials:
    """The gates of a group that judge no other one either: they are on cells that no trial is in."""
    taken = {gate.text for other in others for gate in other.gates}
    return JudgedTrials([gate for gate in group.gates if gate.text not in taken], group.triage, group.action)


class Gating:
    """Of one run: all gates together decide."""

    def __init__(self) -> None:
        self._judged: list[JudgedTrials] = []
        self._notes: list[str] = []

    def conclude(self, session: pytest.Session, groups: Sequence[JudgedTrials]) -> None:
        """Set the exit status of a run that has come to its end; any other is left as it is."""
        found = [group for group in groups if group.has_begun]
        if not found:
            return
        found += [rest for group in groups if group not in found and (rest := _without(group, found)).gates]
        stopped = session.shouldfail or session.shouldstop
        if stopped or session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            why = stopped or "it did not come to its end"
            self._notes.append(f"gates are not judged, because the run is incomplete: {why}")
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            return
        self._judged = found
        excused = sum(group.judge() for group in found)
        others = session.testsfailed - excused
        if others > 0:
            self._notes.append(f"{counted(others, 'failure')} that no gate judges: not of a trial, or infrastructure")
        elif excused and self.hold:
            self._notes.append(f"exit status 0: the gates judge {counted(excused, 'failed trial')}, and hold")
        succeeds = self.hold and others <= 0
        session.exitstatus = pytest.ExitCode.OK if succeeds else pytest.ExitCode.TESTS_FAILED

    @property
    def hold(self) -> bool:
        """Whether all do."""
        return all(result.holds for group in self._judged for result in group.results)

    def print(self, terminal: pytest.TerminalReporter) -> None:
        """Print what became of each gate; with ``-q`` only of those that do not hold."""
        quiet = terminal.verbosity < 0
        if not (self._judged or self._notes) or (quiet and self.hold and not self._notes):
            return
        terminal.write_sep("=", "gates")
        for group in self._judged:
            of = f"{group.action}: " if group.action else ""
            for result in group.results:
                for problem in result.problems:
                    line = f"does not hold: {of}{result.gate.text}: {problem}"
                    terminal.write_line(printable(line), red=True)
                if result.holds and not quiet:
                    terminal.write_line(printable(f"holds: {of}{result.gate.text}"), green=True)
        for note in self._notes:
            terminal.write_line(printable(note))
