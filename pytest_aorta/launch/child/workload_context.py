"""torchrun's context of the ranks of a workload; imported in torchrun's own process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pytest_aorta.launch.child.rank_evidence import attempt_evidence, left_early
from pytest_aorta.launch.child.rank_files import attempt_folder
from pytest_aorta.launch.child.rank_stacks import look_at_ranks
from pytest_aorta.launch.child.recording_context import RecordingContext

if TYPE_CHECKING:
    from pytest_aorta.launch.trial_payload import TrialPayload


class WorkloadContext(RecordingContext):
    """Looks into the event logs of the ranks as well."""

    sockets: ClassVar[Path]
    source: ClassVar[str | None]

    @classmethod
    def use(cls, payload: TrialPayload) -> None:
        """Be the context of this trial's ranks."""
        cls.folder, cls.stop_timeout = Path(payload["folder"]), max(1.0, payload["grace"])
        cls.sockets, cls.source = Path(payload["sockets"]), payload["source"]

    def on_stop(self) -> None:
        """Have the stacks of ranks taken that still run, where others have waited for one of them."""
        super().on_stop()
        trial = attempt_evidence(self.folder, self.attempt, "torchrun", self.source)
        look_at_ranks(trial, self.running(), attempt_folder(self.folder, self.attempt), self.sockets)

    def has_left(self, local_rank: int) -> bool:
        """Whether its event log has no end."""
        return left_early(attempt_folder(self.folder, self.attempt), self.ranks()[local_rank])
