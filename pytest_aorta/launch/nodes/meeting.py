"""The part of a store that belongs to one trial of several nodes."""

from __future__ import annotations

import contextlib
import importlib
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from pytest_aorta.launch.nodes.addressing import endpoint, meets_in_etcd
from pytest_aorta.launch.nodes.seal import VARIABLE, ForgedValue, Seal
from pytest_aorta.launch.nodes.sealed_store import SealedStore
from pytest_aorta.trials.elastic_options import ElasticOptions

#: Seconds that a store which answers may take to say that it is that of the run.
_PATIENCE = 15.0

#: Seconds after which etcd forgets a trial; as of torch's own rendezvous.
_KEPT = 7200


class WrongStore(Exception):
    """What is found where the nodes should meet is not the store of this run."""


def store_errors() -> tuple[type[Exception], ...]:
    """What a store raises that cannot be used, or has what it should not have."""
    known = (RuntimeError, OSError, ValueError, LookupError, ForgedValue, WrongStore)
    return known if (etcd := sys.modules.get("etcd")) is None else (*known, etcd.EtcdException)


@dataclass(frozen=True)
class TrialStore:
    """The part of a trial.

    Attributes:
        raw: as torch needs it.
        sealed: accepts only what nodes of the run have written.
    """

    raw: Any
    sealed: SealedStore

    def announce(self, node: int) -> None:
        """Say that a node has come."""
        self.sealed.set(f"here/{node}", socket.gethostname())


def connect(options: ElasticOptions, trial_id: str, secret: str, patience: float) -> TrialStore:
    """The part of a trial in the store at which the nodes meet.

    Args:
        options: of the agent.
        trial_id: of the trial.
        secret: of the run.
        patience: seconds to wait for an answer, each time.

    Raises:
        WrongStore: the store is not that of this run.
        RuntimeError: there is none.
    """
    host, port = endpoint(options)
    seal = Seal(secret)
    if meets_in_etcd(options):
        name = f"/aorta/{options.rdzv_id}.{trial_id}"
        store = _etcd_store(host, port, name, patience)
        return TrialStore(store, SealedStore(store, seal, name))
    client = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=patience))  # type: ignore[attr-defined]
    try:
        client.wait([seal.hello], timedelta(seconds=_PATIENCE))
    except RuntimeError:
        raise WrongStore(
            f"the store at {host}:{port} is not that of this run: another run may use the port, or the nodes do not "
            f"see the same results directory; then set {VARIABLE} to the same value on every node"
        ) from None
    return _part(client, seal, trial_id)


def _etcd_store(host: str, port: int, name: str, patience: float) -> Any:
    from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

    etcd: Any = importlib.import_module("etcd")  # may be absent, and has no types
    client = etcd.Client(host, port, read_timeout=patience, allow_reconnect=True)
    with contextlib.suppress(etcd.EtcdAlreadyExist):  # another node was faster
        client.write(name, None, dir=True, ttl=_KEPT, prevExist=False)
    return EtcdStore(client, name, timedelta(seconds=patience))


def _part(store: Any, seal: Seal, trial_id: str) -> TrialStore:
    name = f"{seal.prefix}/{trial_id}"
    raw = dist.PrefixStore(name, store)  # type: ignore[attr-defined]
    return TrialStore(raw, SealedStore(raw, seal, name))


def present(store: Any, seal: Seal, trial_id: str, nodes: int) -> dict[int, str]:
    """Those of a number of nodes that have come to a trial, with their host names.

    Raises:
        ForgedValue: the store has a value that no node of this run has written.
    """
    sealed = _part(store, seal, trial_id).sealed
    return {node: sealed.get(f"here/{node}").decode() for node in range(nodes) if sealed.check([f"here/{node}"])}
