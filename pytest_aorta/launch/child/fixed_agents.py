"""The rendezvous of agents whose number is fixed."""

from __future__ import annotations

from torch.distributed.elastic.rendezvous import RendezvousHandler


class FixedAgents(RendezvousHandler):
    """No agent joins later, and none closes the rendezvous for the others.

    Args:
        run_id: which ranks find in ``TORCHELASTIC_RUN_ID``.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def is_closed(self) -> bool:
        """Never."""
        return False

    def set_closed(self) -> None:
        """Nothing to close."""

    def num_nodes_waiting(self) -> int:
        """None."""
        return 0

    def get_run_id(self) -> str:
        """The name of the rendezvous."""
        return self._run_id
