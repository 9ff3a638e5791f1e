"""A trial that is not run, because an earlier run has its result."""

from __future__ import annotations

from pytest_aorta.trials.result import TrialResult
from pytest_aorta.trials.spec import TrialSpec


class ResumedTrial:
    """Ends every phase as the record has it; the record gets the name that the trial has in this plan."""

    resumed = True
    #: It never takes a slot.
    started = False

    def __init__(self, spec: TrialSpec, record: TrialResult) -> None:
        self.spec = spec
        self._record = record.model_copy(update={"trial_id": spec.trial_id})

    def wait(self, phase: str) -> bool:
        """Whether the trial got through ``phase`` (``setup``, ``run``)."""
        return self.got_through(phase)

    def got_through(self, phase: str) -> bool:
        """Whether ``phase`` has ended well."""
        record = self._record
        if record.exit_status == "ok":
            return True
        if phase == "run":
            return False
        # A rank may have failed in its setup while rank 0, whose phases count, was in its run.
        failed_here = record.failure is not None and record.failure.phase == "setup" and "run" not in record.phases_sec
        return "setup" in record.phases_sec and not failed_here

    def failed(self) -> bool:
        """Whether it has failed."""
        return self._record.exit_status != "ok"

    def interrupt(self, why: str) -> None:
        """Nothing runs."""

    def finish(self) -> TrialResult:
        """The record."""
        return self._record

    def take_warnings(self) -> list[str]:
        """None: the earlier run has shown them."""
        return []
