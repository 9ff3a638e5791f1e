"""What ``--aorta-gate`` makes of a run: its exit status, and why."""

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
    from pytest_aorta.triage.table import Triage


class Gating:
    """Of one run."""

    def __init__(self, gates: Sequence[Gate]) -> None:
        self.gates = gates
        #: How many failed reports the items of trials have, by the ids of the trials.
        self._failed: Counter[tuple[str, str]] = Counter()
        self._results: list[GateResult] = []
        self._notes: list[str] = []

    def see(self, report: pytest.TestReport) -> None:
        """Remember a failed report of a trial, which by itself makes the run no failure."""
        properties = dict(report.user_properties)
        if report.failed and report.when != "teardown" and "aorta_trial_id" in properties:
            self._failed[str(properties["aorta_workload"]), str(properties["aorta_trial_id"])] += 1

    def conclude(self, session: pytest.Session, triage: Triage) -> None:
        """Set the exit status of a run that has come to its end; any other is left as it is."""
        from pytest_aorta.triage.gates import judge

        if not self.gates or not any(cell.has_begun for cell in triage.cells):
            return
        stopped = session.shouldfail or session.shouldstop
        if stopped or session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            why = stopped or "it did not come to its end"
            self._notes.append(f"gates are not judged, because the run is incomplete: {why}")
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            return
        self._results = judge(self.gates, triage.table())
        judged: set[Outcome] = {"failed", "timeout"}
        if any(gate.value == "infrastructure" for gate in self.gates):
            judged |= {"infrastructure", "did not run"}
        excused = sum(
            self._failed[facts.key.workload, facts.trial_id]
            for cell in triage.cells
            for facts in cell.finished
            if facts.outcome in judged
        )
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
        return all(result.holds for result in self._results)

    def print(self, terminal: pytest.TerminalReporter) -> None:
        """Print what became of each gate; with ``-q`` only of those that do not hold."""
        quiet = terminal.verbosity < 0
        if not self.gates or (quiet and self.hold and not self._notes):
            return
        terminal.write_sep("=", "gates")
        for result in self._results:
            for problem in result.problems:
                line = f"does not hold: {result.gate.text}: {problem}"
                terminal.write_line(printable(line), red=True)
            if result.holds and not quiet:
                terminal.write_line(printable(f"holds: {result.gate.text}"), green=True)
        for note in self._notes:
            terminal.write_line(printable(note))
