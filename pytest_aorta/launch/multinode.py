"""Trials whose nodes are hosts of the runtime: one job on each host; the record is that of the first one."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_aorta.launch.host.service import TrialOrder
from pytest_aorta.launch.launch_mode import LaunchModeError
from pytest_aorta.launch.nodes.addressing import is_multi_node
from pytest_aorta.launch.pool import JobPool
from pytest_aorta.launch.slot_trial import SlotTrial
from pytest_aorta.trials.execution import ElasticOptions
from pytest_aorta.trials.result import TrialResult
from pytest_aorta.trials.spec import TrialSpec

#: Port of the rendezvous on a host that cannot be asked for a free one; torchrun's default.
_PORT = 29400


class MultiNodeTrial(SlotTrial):
    """The job of a trial's first node. Its record holds the ranks of the ``others`` as well."""

    def __init__(self, order: TrialOrder, folder: Path, pool: JobPool) -> None:
        super().__init__(order, folder, pool)
        self.others: list[SlotTrial] = []

    def interrupt(self, why: str) -> None:
        """End it, on all hosts."""
        super().interrupt(why)
        for other in self.others:
            other.interrupt(why)

    def finish(self) -> TrialResult:
        """Block until its processes are gone, on all hosts; the record."""
        record = super().finish()
        if record.failure is not None:  # the other nodes may wait for the first one
            for other in self.others:
                other.interrupt("the first node has ended")
        for other in self.others:
            other.finish()
        return record


class MultiNodePlan:
    """Which hosts are the nodes of a trial, and the endpoint of their rendezvous.

    Args:
        options: of the agents.
        hosts: execnet specifications, in the order of the nodes.

    Raises:
        LaunchModeError: there are fewer hosts than nodes that have to take part.
    """

    def __init__(self, options: ElasticOptions, hosts: Sequence[str]) -> None:
        if len(hosts) < options.nnodes[0]:
            raise LaunchModeError(
                f"nnodes={options.nnodes[0]}:{options.nnodes[1]} needs {options.nnodes[0]} hosts, "
                f"but --aorta-host names {len(hosts)}"
            )
        self.count = min(options.nnodes[1], len(hosts))
        self._endpoint = options.rdzv_endpoint or _endpoint_on(hosts[0])

    @property
    def endpoint(self) -> tuple[str, int]:
        """Where the first host keeps the run's store."""
        host, _, port = self._endpoint.rpartition(":")
        return host, int(port)

    def spec_for(self, spec: TrialSpec, node: int) -> TrialSpec:
        """A trial as one of its nodes runs it."""
        elastic = spec.execution.elastic
        least = elastic.nnodes[0]
        nnodes = (least, max(least, self.count))
        elastic = replace(elastic, nnodes=nnodes, node_rank=node, rdzv_endpoint=self._endpoint)
        return replace(spec, execution=replace(spec.execution, elastic=elastic))


def plan_nodes(options: ElasticOptions | None, hosts: Sequence[str]) -> MultiNodePlan | None:
    """The plan of trials whose nodes are ``hosts``; ``None`` where each trial runs on one host."""
    return MultiNodePlan(options, hosts) if options is not None and hosts and is_multi_node(options) else None


def _endpoint_on(host: str) -> str:
    """An endpoint on the host of an execnet specification."""
    import execnet

    spec = execnet.XSpec(host)
    if spec.popen:
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"localhost:{probe.getsockname()[1]}"
    name = str(spec.ssh or spec.socket or "").split()[-1].rpartition("@")[2]
    return f"{name.partition(':')[0] if spec.socket else name}:{_PORT}"
