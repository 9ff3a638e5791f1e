"""Reading the files that the processes of a trial have left, for what they did not report."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pytest_aorta.common.texts import first_names
from pytest_aorta.launch.child.attempt_files import (
    attempt_evidence,
    attempt_folder,
    keep_evidence,
    last_attempt,
    pids_of_ranks,
    save_collectives,
)
from pytest_aorta.launch.diagnosis.evidence import AgentEnd, Launcher, TrialEvidence
from pytest_aorta.launch.diagnosis.judge import judge, ranks_event
from pytest_aorta.launch.diagnosis.traces import locate, read_dump
from pytest_aorta.launch.host.artifacts import STACKS
from pytest_aorta.launch.host.external_ranks import gather_evidence, report_exit
from pytest_aorta.launch.host.node_files import with_other_nodes
from pytest_aorta.launch.host.rank_results import combined_result
from pytest_aorta.launch.launch_mode import COMMAND_RANKS_TARGET, SCRIPT_TARGET, own_rank
from pytest_aorta.launch.nodes.addressing import endpoint, is_multi_node, network_problem, node_rank
from pytest_aorta.launch.nodes.store import NodeStore
from pytest_aorta.launch.workload_info import PreparedCell
from pytest_aorta.trials.events import RankData
from pytest_aorta.trials.execution import ElasticOptions
from pytest_aorta.trials.lifecycle import read_steps, step_file
from pytest_aorta.trials.outcome import Observed
from pytest_aorta.trials.spec import TrialSpec

#: Nodes that a message names.
_NAMED = 8


class Evidence:
    """Completes what was ``seen`` of a trial from the files in its ``folder``, and the ``sockets`` of its ranks.

    ``node_store`` is that at which the nodes of the trial meet, where this host keeps it.
    """

    def __init__(
        self,
        spec: TrialSpec,
        cell: PreparedCell,
        folder: Path,
        sockets: Path | None,
        seen: Observed,
        node_store: NodeStore | None = None,
    ) -> None:
        self._spec = spec
        self._cell = cell
        self._folder = folder
        self._sockets = sockets
        self._seen = seen
        self._node_store = node_store

    def save_collectives(self) -> None:
        """Ask every rank's flight recorder which collectives the rank has entered, while the ranks still run."""
        if self._sockets is None:
            return
        folder = attempt_folder(self._folder, last_attempt(self._folder))
        for rank, pid in pids_of_ranks(folder).items():
            save_collectives(folder, rank, pid, self._sockets)

    def read(self, overdue: float | None) -> None:
        """After the end of all processes. ``overdue``: when a limit passed, in seconds of ``time.time()``."""
        mode = self._cell.plan.mode
        if mode == "single" and (last := read_steps(step_file(self._folder))) is not None:
            self._seen.see(last)
        if mode == "external":
            self._exchange_with_ranks(overdue)
        elif overdue is None:
            if mode == "elastic" and self._seen.lost is None and not self._seen.ranks:
                self._read_orphans()
        elif mode == "single":
            location = locate(read_dump(self._folder / STACKS), self._cell.info.source)
            self._seen.location = None if location is None else location.text
        else:
            self._read_overdue(overdue)

    def _exchange_with_ranks(self, overdue: float | None) -> None:
        """Where pytest is a rank: report this rank's exit to rank 0; on rank 0, read those of the other ranks."""
        if own_rank() == 0:
            source, stalled = self._cell.info.source, self._seen.stalled
            code, interrupted = self._seen.returncode, self._seen.lost is not None
            self._judge(gather_evidence(self._folder, code, source, overdue, stalled, interrupted=interrupted))
        else:
            with contextlib.suppress(OSError):
                interrupted = self._seen.lost is not None
                report_exit(self._folder, own_rank(), self._seen.returncode, overdue, interrupted=interrupted)

    def _read_orphans(self) -> None:
        """Where the agent was killed, and its ranks with it."""
        code = self._seen.returncode
        if code is not None and code < 0:
            self._judge(self._evidence(AgentEnd("the agent", code)))

    def _read_overdue(self, overdue: float) -> None:
        """Where the agent was ended together with its ranks because of a limit."""
        trial = self._evidence(overdue=overdue)
        elastic = self._spec.execution.elastic
        if is_multi_node(elastic):
            grace = self._spec.limits.grace
            trial.network = network_problem(elastic)
            trial = with_other_nodes(trial, self._folder, node_rank(elastic), elastic.nnodes[1], grace)
        self._judge(trial)
        if is_multi_node(elastic) and not trial.ranks:
            self._seen.location = self._not_met(elastic)

    def _not_met(self, elastic: ElasticOptions) -> str:
        """Which nodes have not come."""
        least, most = elastic.nnodes
        come = None if self._node_store is None else self._node_store.nodes_of(self._spec.trial_id, most)
        absent = [f"node {node}" for node in range(least) if come is not None and node not in come]
        named = ", ".join(first_names(absent, _NAMED))
        lost = f" ({named} did not come)" if absent else " (one that had come has gone)" if come else ""
        return (
            f"the nodes have not all met at {':'.join(map(str, endpoint(elastic)))}{lost}: run the same pytest on each "
            f"of {least}{'' if least == most else f' to {most}'} nodes, or allow fewer with "
            "--aorta-elastic nnodes=MIN:MAX"
        )

    def _evidence(self, agent: AgentEnd | None = None, overdue: float | None = None) -> TrialEvidence:
        """Of the last attempt."""
        mode = self._cell.plan.mode
        launcher: Launcher = "torchrun" if mode == "torchrun" else "elastic"
        if self._spec.workload.target in (SCRIPT_TARGET, COMMAND_RANKS_TARGET):
            launcher = "script"
        source, attempt, stalled = self._cell.info.source, last_attempt(self._folder), self._seen.stalled
        return attempt_evidence(self._folder, attempt, launcher, source, agent=agent, overdue=overdue, stalled=stalled)

    def _judge(self, trial: TrialEvidence) -> None:
        found = judge(trial)
        if found.failure is not None or found.cleanup is not None:
            keep_evidence(self._folder, trial)
        self._seen.see(ranks_event(found))
        if found.location is not None:
            self._seen.location, self._seen.hung_rank = found.location, found.hung_rank
            if any(_hung_importing(record) for record in found.ranks if record["rank"] == found.hung_rank):
                self._seen.phase = "import"  # of which rank 0, whose phase it was, knows nothing
        self.combine_results()

    def combine_results(self) -> None:
        """Where ``result_scope`` is ``rank_local``, the result is that of all ranks together; else that of rank 0."""
        seen = self._seen
        if self._cell.info.result_scope == "rank_local":
            seen.result = combined_result(seen.ranks) or seen.result
        elif is_multi_node(self._spec.execution.elastic):  # rank 0 may be on any node
            seen.result = next((rank["result"] for rank in seen.ranks if rank["rank"] == 0), seen.result)


def _hung_importing(record: RankData) -> bool:
    failure = record["failure"]
    return failure is not None and failure["kind"] in ("timeout", "stall") and failure["phase"] == "import"
