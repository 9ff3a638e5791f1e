"""Reads the files that the processes of a trial have left, for what the processes did not report."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pytest_aorta.common.texts import first_names, read_tail
from pytest_aorta.launch.child.bootstrap import READS
from pytest_aorta.launch.child.rank_files import (
    PROCESSES,
    Process,
    adopt_ranks,
    attempt_evidence,
    clear,
    complete_rank,
    drop_collectives,
    event_log,
    evidence_file,
    failure_below,
    has_ended,
    keep_evidence,
    last_attempt,
    rank_folder,
    read_evidence,
    read_processes,
    save_collectives,
    write_exit,
)
from pytest_aorta.launch.diagnosis.evidence import AgentEnd, AttemptEvidence, Launcher, RankEvidence, RankExit
from pytest_aorta.launch.diagnosis.judge import attempt_event, judge, ranks_event, with_earlier
from pytest_aorta.launch.diagnosis.traces import (
    STACKS,
    imports_a_library,
    locate,
    read_dump,
    waits_for_a_child,
)
from pytest_aorta.launch.environment import PreparedCell
from pytest_aorta.launch.launch_mode import (
    COMMAND_RANKS_TARGET,
    SCRIPT_TARGET,
    NodeStore,
    endpoint,
    is_command,
    is_multi_node,
    network_problem,
    node_rank,
    own_rank,
)
from pytest_aorta.trials.execution import FILES, ElasticOptions
from pytest_aorta.trials.loading import file_digest
from pytest_aorta.trials.outcome import Observation
from pytest_aorta.trials.output import RETURNCODE
from pytest_aorta.trials.spec import TrialSpec
from pytest_aorta.trials.steps import read_steps, step_file
from pytest_aorta.trials.tracebacks import Frame

#: Suffixes of files that are kept, and of files that the processes of a trial have exchanged.
_KEPT = (".log", "error.json", "collectives.json", "evidence.json")
_EXCHANGED = (".events", ".steps")

_PACKAGE = Path(__file__).parents[2]

#: Folders below a project that are not looked at.
_NOT_OWN = {"site-packages", "dist-packages", ".git", "__pycache__"}

#: Seconds that rank 0 waits for the exits of the other ranks after its own.
_PATIENCE = 30.0

#: Seconds that another node may be behind with its deadline.
_NODE_PATIENCE = 5.0

#: Bytes at the end of each log of a command in which messages of its launcher are searched.
_SAID = 2**18

#: Nodes that a message names.
_NAMED = 8


def collect_artifacts(folder: Path) -> dict[str, str]:
    """Logs, error files and collectives in a trial's ``folder``: name -> path relative to the trial file's folder.

    Removes empty dumps of stacks and the files that processes of the trial have exchanged.
    """
    kept = []
    exchanged_is_read = own_rank() == 0  # rank 0 has still to read what another rank has written
    for root, folders, names in os.walk(folder):
        if root == os.fspath(folder) and FILES in folders:
            folders.remove(FILES)  # the trial's own
        for name in names:
            path = Path(root, name)
            with contextlib.suppress(OSError):
                if name.endswith(STACKS) and path.stat().st_size == 0:
                    path.unlink()
                elif name.endswith(_KEPT):
                    kept.append(path)
                elif exchanged_is_read and (name.endswith(_EXCHANGED) or path.match("torchrun*.json")):
                    path.unlink()
    artifacts = {}
    for path in sorted(kept):
        inside = path.relative_to(folder)
        artifacts[inside.with_suffix("").as_posix()] = f"{folder.name}/{inside.as_posix()}"
    return artifacts


class OpenedFiles(NamedTuple):
    """What the Python processes of a command told at their end: digests of modules, names of open devices.

    ``modules``: modules of installed distributions.
    """

    read: dict[str, str]
    devices: list[str]
    modules: list[str]


def opened_files(folder: Path, copy: Path | None, project: Path, results: Path | None) -> OpenedFiles | None:
    """Files that the trial's processes imported, except installed ones; ``None`` if no process reported any.

    ``folder``: of the trial. ``copy``: its own working directory; files in it count as those of the ``project``.
    """
    noted = folder / READS
    try:
        lines = noted.read_bytes().splitlines()
        noted.unlink()
    except OSError:
        return None
    own, devices, modules = set(), set(), set()
    for line in lines:
        if line[:1] == b"m":
            modules.add(os.fsdecode(line[1:]))
            continue
        path = Path(os.fsdecode(line[1:]))
        if line[:1] == b"d":
            devices.add(path.name)
        elif _NOT_OWN.isdisjoint(path.parts) and not path.is_relative_to(_PACKAGE):
            is_copied = copy is not None and path.is_relative_to(copy)
            own.add(project / path.relative_to(copy) if copy is not None and is_copied else path)
    files = [path for path in sorted(own) if results is None or not path.is_relative_to(results)]
    digests = {str(path): digest for path in files if path.is_file() and (digest := file_digest(path)) is not None}
    return OpenedFiles(digests, sorted(devices), sorted(modules))


def _rank_to_read(seen: Observation) -> int | None:
    """The rank that is the cause; the first of several that may be."""
    failure = seen.rank_failure
    if failure is None or failure.rank is not None:
        return seen.hung_rank if failure is None else failure.rank
    return next((rank.rank for rank in seen.ranks if rank.blame == "unknown" and failure.confidence), None)


def stacks_to_read(seen: Observation, artifacts: dict[str, str]) -> str | None:
    """The dump of stacks to read first: from the rank that failed or for which others waited, if it is known."""
    rank = _rank_to_read(seen)
    of_rank = (record.stacks for record in seen.ranks if record.rank == rank and record.stacks is not None)
    return next(of_rank, artifacts.get("stacks"))


def stderr_to_read(seen: Observation, folder: Path) -> Path | None:
    """The log of the failed process in a trial's ``folder``: the log of the rank that is the cause, if one is."""
    if seen.rank_failure is None or (rank := _rank_to_read(seen)) is None:
        return folder / "stderr.log"
    logs = (record.stderr for record in seen.ranks if record.rank == rank)
    return next((folder.parent / log for log in logs if log is not None), folder / "stderr.log")


# The ranks of a trial whose pytest is a rank itself (``torchrun -m pytest``). Every rank's pytest runs every trial in a
# child, and adds its end to its event log. Rank 0 alone reports; it reads the logs of the other ranks of its host.


def gather_evidence(
    folder: Path, end: RankExit | None, overdue: float | None, source: str | None, stalled: float | None
) -> AttemptEvidence:
    """Gather the evidence of all ranks of this host after their ends; ``end`` and ``overdue`` are of rank 0.

    ``source``: the workload's file. ``stalled``: the limit in seconds, if that is why the trial was ended. Ranks of
    other hosts are not waited for; what they break shows in rank 0's collectives.
    """
    attempt, world_size = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")), int(os.environ["WORLD_SIZE"])
    trial = AttemptEvidence("external", attempt, world_size, stalled=stalled)
    here = range(int(os.environ.get("LOCAL_WORLD_SIZE", world_size)))
    folders = {rank: rank_folder(folder, rank) for rank in here}
    waited_for = folders.keys() - {0}
    give_up = time.monotonic() + _PATIENCE
    while waited_for and time.monotonic() < give_up:
        waited_for -= {rank for rank in waited_for if has_ended(folders[rank], rank)}
        time.sleep(0.01)
    for rank, own in folders.items():
        evidence = complete_rank(RankEvidence(rank, rank), own, "", folder.parent, source)
        if rank == 0:  # its log may lie on a disk that is full
            evidence.exit, evidence.overdue = end, overdue
        evidence.host = socket.gethostname() if evidence.events is not None else None
        trial.ranks.append(evidence)
        if rank != 0 and rank not in waited_for:
            for file in (event_log, step_file):
                file(own, rank).unlink(missing_ok=True)
    return trial


def with_other_nodes(trial: AttemptEvidence, folder: Path, node: int, nodes: int, grace: float) -> AttemptEvidence:
    """After the deadline, on node 0: add the evidence of the other nodes, if all nodes see the results directory."""
    if node != 0:
        return replace(trial, ranks=trial.own_ranks())
    others = [other for number in range(1, nodes) if (other := node_folder(folder, number)).exists()]
    if trial.group is None:  # they have not met
        others = []
    ranks: list[RankEvidence] = []
    network: list[str] = []
    give_up = time.monotonic() + grace + _NODE_PATIENCE
    while others:
        for other in list(others):
            read = read_evidence(evidence_file(other, last_attempt(other)))
            # If the node has not joined, the file of an earlier run may lie there.
            if read is not None and read.group == trial.group:
                ranks += read.ranks
                network += [read.network] if read.network else []
                others.remove(other)
        if time.monotonic() > give_up:
            break
        time.sleep(0.05)
    return replace(trial.with_ranks(ranks), network="; ".join(network) or None)


def node_folder(folder: Path, node: int) -> Path:
    return folder.with_name(f"{folder.name}.node_{node}")


class FolderReader:
    """Completes what was ``seen`` of a trial from the files in its ``folder`` and the ``sockets`` of its ranks.

    ``node_store``: the store at which the nodes of the trial meet, if this host serves it.
    """

    def __init__(
        self,
        spec: TrialSpec,
        cell: PreparedCell,
        folder: Path,
        sockets: Path | None,
        seen: Observation,
        node_store: NodeStore | None = None,
    ) -> None:
        self._spec = spec
        self._elastic = spec.execution.elastic
        self._cell = cell
        self._folder = folder
        self._sockets = sockets
        self._seen = seen
        self._node_store = node_store
        #: Processes that the command has started, in the order of their starts.
        self._children: list[Process] = []

    def save_collectives(self) -> None:
        """Ask every rank's flight recorder which collectives the rank has entered, while the ranks still run."""
        if self._sockets is None:
            return
        save_collectives(self._folder, self._sockets)

    def read(self, overdue: float | None) -> None:
        """Read the files after all processes have ended. ``overdue``: the ``time.time()`` when a limit passed."""
        mode, seen = self._cell.plan.mode, self._seen
        if mode == "single":
            if (last := read_steps(step_file(self._folder))) is not None:
                seen.see(last)
            if is_command(self._spec.workload.target):
                self._read_command(overdue)
            if overdue is not None and not seen.ranks:
                threads = read_dump(self._folder / STACKS)
                location = locate(threads, self._cell.info.source)
                seen.location = None if location is None else location.text
                if is_command(self._spec.workload.target):
                    self._locate_in_command(threads)
        elif mode == "external":
            end, rank = None, own_rank()
            if seen.returncode is not None and overdue is None:
                end = RankExit(seen.returncode, at=time.time(), stopped=seen.lost is not None)
            if rank == 0:
                self._judge(gather_evidence(self._folder, end, overdue, self._cell.info.source, seen.stalled))
            else:
                write_exit(self._folder, rank, end, overdue)
        elif overdue is not None:
            self._read_overdue(overdue)
        elif seen.lost is None and not seen.ranks and (seen.returncode or 0) < 0:
            name = "the agent" if mode == "elastic" else "torchrun"
            self._judge(self._evidence(AgentEnd(name, seen.returncode)))

    def _locate_in_command(self, threads: list[list[Frame]]) -> None:
        """Note whether a command that a limit has ended was exiting, importing, or waiting for a child."""
        seen, of_main = self._seen, threads[-1] if threads else []
        if of_main and all(frame.name != "<module>" for frame in of_main):  # no frame of a module
            seen.phase = "exit"
        elif imports_a_library(threads) and seen.progress is None:
            seen.phase = "import"
        elif seen.location is not None and waits_for_a_child(threads):
            stuck = [child for child in self._children if child.end is None and child.lived is None]
            for child in reversed(stuck):
                dump = read_dump(self._folder / PROCESSES / f"{child.name}.stacks.log")
                if (location := locate(dump)) is not None:
                    seen.location = f"{seen.location} waits for a child; {location.text}"
                    return

    def _read_command(self, overdue: float | None) -> None:
        """Let ranks that the command itself has started say why it has failed, unless it has passed."""
        folder, seen = self._folder, self._seen
        said = "".join(read_tail(folder / name, _SAID) for name in ("stdout.log", "stderr.log"))
        processes = read_processes(folder)
        self._children = [each for each in processes if each.parent in {it.pid for it in processes}]
        code = 0 if seen.result is None else seen.result.metrics.get(RETURNCODE, 0)
        attempts = adopt_ranks(folder, processes, said, code, self._cell.info.source)
        clear(folder)
        for trial in attempts[:-1]:
            keep_evidence(folder, trial)
            seen.attempts.append(attempt_event(trial)["attempt"])
        if seen.result is not None and seen.result.passed:
            judgement = judge(attempts[-1]) if attempts else None
            if judgement is not None and judgement.failure is None:
                seen.see(ranks_event(judgement))
            drop_collectives(folder)
            return
        if not attempts:
            own = seen.failures.get("run")
            program = next((each for each in processes if each.parent not in {it.pid for it in processes}), None)
            lived = None if program is None else program.lived  # to the last of its own lines
            # What it does after its deadline is the work of the signals that end it and its children.
            if program is not None and lived is not None and (overdue is None or lived < overdue):
                # After a KeyboardInterrupt, Python ends itself by SIGINT.
                if own is not None and own.kind == "signal" and own.signal != "SIGINT" and not program.raised:
                    seen.failures["run"] = replace(own, phase="exit", message=f"{own.message} at exit")
                    return
                seen.phase = "exit" if overdue is not None else seen.phase
            if own is not None and own.kind in ("exception", "exit_code"):
                failure = failure_below(processes, own) or own
                seen.failures["run"] = replace(failure, at=own.at)
            return
        self._judge(replace(attempts[-1], overdue=overdue, stalled=seen.stalled))

    def _read_overdue(self, overdue: float) -> None:
        trial = self._evidence(overdue=overdue)
        if is_multi_node(self._elastic):
            grace, nodes = self._spec.limits.grace, self._elastic.nnodes[1]
            trial.network = network_problem(self._elastic)
            trial = with_other_nodes(trial, self._folder, node_rank(self._elastic), nodes, grace)
        self._judge(trial)
        if is_multi_node(self._elastic) and not trial.ranks:
            self._seen.location = self._not_met(self._elastic)

    def _not_met(self, elastic: ElasticOptions) -> str:
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

    def _evidence(self, agent: AgentEnd | None = None, overdue: float | None = None) -> AttemptEvidence:
        is_script = self._spec.workload.target in (SCRIPT_TARGET, COMMAND_RANKS_TARGET)
        launcher: Launcher = "torchrun" if self._cell.plan.mode == "torchrun" else "elastic"
        source, attempt, stalled = self._cell.info.source, last_attempt(self._folder), self._seen.stalled
        limits = {"overdue": overdue, "stalled": stalled}
        kind: Launcher = "script" if is_script else launcher
        trial = attempt_evidence(self._folder, attempt, kind, source, agent=agent, **limits)
        clear(self._folder)
        return trial

    def _judge(self, trial: AttemptEvidence) -> None:
        judgement, seen = with_earlier(judge(trial), self._seen.attempts), self._seen
        if judgement.failure is not None or judgement.cleanup is not None:
            keep_evidence(self._folder, trial)
        seen.see(ranks_event(judgement))
        if judgement.location is not None:
            seen.location, seen.hung_rank = judgement.location, judgement.hung_rank
            failure = next((record.failure for record in judgement.ranks if record.rank == judgement.hung_rank), None)
            if failure is not None and failure.is_late and failure.phase == "import":
                seen.phase = "import"  # rank 0, whose phase it was, does not know of it
        self.combine_results()

    def combine_results(self) -> None:
        """Set the trial's result: the combined one of all ranks if ``result_scope`` is ``rank_local``, else rank 0's.

        Failures are added up, and their details listed in the order of the ranks; everything else is rank 0's.
        """
        seen = self._seen
        results = [(rank.rank, rank.result) for rank in seen.ranks if rank.result is not None]
        if self._cell.info.result_scope == "rank_local":
            if results and len(results) == len(seen.ranks):
                firsts = [result.first_failure_iteration for _, result in results]
                seen.result = replace(
                    results[0][1],
                    passed=all(result.passed for _, result in results),
                    failure_count=sum(result.failure_count or 0 for _, result in results),
                    first_failure_iteration=min((first for first in firsts if first is not None), default=None),
                    failure_details=[{"rank": rank, **each} for rank, it in results for each in it.failure_details],
                )
        elif is_multi_node(self._elastic):  # rank 0 may be on any node
            seen.result = next((rank.result for rank in seen.ranks if rank.rank == 0), seen.result)
