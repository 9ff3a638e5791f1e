"""The store at which several nodes meet: a real one, and what a stranger can do to it who reaches its port."""

from __future__ import annotations

import base64
import pickle
import socket
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from pytest_aorta.launch.child.torch_compat.stores import serve_store
from pytest_aorta.launch.launch_mode import LaunchModeError
from pytest_aorta.launch.nodes.exchange import NodeExchange
from pytest_aorta.launch.nodes.listening import listen
from pytest_aorta.launch.nodes.meeting import TrialStore, WrongStore, connect
from pytest_aorta.launch.nodes.seal import ForgedValue, Seal
from pytest_aorta.launch.nodes.store import NodeStore
from pytest_aorta.trials.elastic_options import ElasticOptions

SECRET = "of this run"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[NodeStore, ElasticOptions]]:
    """A store, and the options with which a node meets there."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    store = NodeStore("localhost", port, SECRET)
    yield store, ElasticOptions(nnodes=(2, 2), node_rank=0, rdzv_endpoint=f"127.0.0.1:{port}")
    store.close()


def part(options: ElasticOptions, trial: str, secret: str = SECRET) -> TrialStore:
    return connect(options, trial, secret, 30.0)


def stranger(options: ElasticOptions) -> dist.TCPStore:  # type: ignore[name-defined]
    """A client that knows no secret."""
    port = int(str(options.rdzv_endpoint).rpartition(":")[2])
    return dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]


def test_it_says_which_nodes_have_come_to_a_trial(served: tuple[NodeStore, ElasticOptions]) -> None:
    store, options = served
    part(options, "here").announce(1)
    assert store.nodes_of("here", 3) == {1: socket.gethostname()}
    assert store.nodes_of("another trial", 3) == {}


def test_trials_have_nothing_in_common(served: tuple[NodeStore, ElasticOptions]) -> None:
    part(served[1], "first").sealed.set("key", "1")
    assert not part(served[1], "second").sealed.check(["key"])


def test_a_node_of_another_run_is_refused(
    served: tuple[NodeStore, ElasticOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_aorta.launch.nodes.meeting._PATIENCE", 0.2)
    with pytest.raises(WrongStore, match=r"is not that of this run.*set AORTA_NODES_SECRET to the same value"):
        part(served[1], "trial", "of another run")


class Harmful:
    """What a stranger would have the agents unpickle."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("it was unpickled",)


def test_what_a_stranger_writes_is_not_unpickled(served: tuple[NodeStore, ElasticOptions]) -> None:
    backend = C10dRendezvousBackend(part(served[1], "attacked").sealed, "run")  # type: ignore[arg-type]
    backend.set_state(b"a state")
    outside = stranger(served[1])
    key = f"{Seal(SECRET).prefix}/attacked/torch.rendezvous.run"  # newer versions of torch list keys to everyone
    assert outside.check([key])
    outside.set(key, base64.b64encode(pickle.dumps(Harmful())))

    with pytest.raises(ForgedValue):
        backend.get_state()
    with pytest.raises(ForgedValue):
        backend.set_state(b"another state")


def test_the_rendezvous_works_as_without_a_seal(served: tuple[NodeStore, ElasticOptions]) -> None:
    first, second = (
        C10dRendezvousBackend(part(served[1], "sealed").sealed, "run")  # type: ignore[arg-type]
        for _ in range(2)
    )
    assert first.get_state() is None
    written = first.set_state(b"one")
    assert written is not None
    assert (written[0], written[2]) == (b"one", True)
    # The second one knows of no state yet, and finds that there is one.
    found = second.set_state(b"two")
    assert found is not None
    assert (found[0], found[2]) == (b"one", False)
    replaced = second.set_state(b"two", found[1])
    assert replaced is not None
    assert (replaced[0], replaced[2]) == (b"two", True)
    assert first.get_state() == (replaced[0], replaced[1])


def test_records_that_a_stranger_writes_are_not_read(
    served: tuple[NodeStore, ElasticOptions], capfd: pytest.CaptureFixture[str]
) -> None:
    trial = {"ranks": [{"rank": rank, "started": rank == 0} for rank in range(2)]}
    stranger(served[1]).set(f"{Seal(SECRET).prefix}/records/group/1", '[{"rank": 1, "started": true}]')
    exchange = NodeExchange(served[1], "records", SECRET)
    assert exchange.share(trial, "group") == trial  # type: ignore[arg-type, comparison-overlap]
    assert "no node of this run has written" in capfd.readouterr().err


def test_a_store_on_all_interfaces_can_be_reached() -> None:
    listening = listen("192.0.2.1", 0)  # of no host
    port = listening.getsockname()[1]
    store = serve_store(listening)
    store.set("key", "value")
    client = dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]
    assert client.get("key") == b"value"


def test_the_secret_is_on_no_command_line(served: tuple[NodeStore, ElasticOptions]) -> None:
    assert SECRET not in " ".join(map(str, served[0]._process.args))  # type: ignore[arg-type]


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchModeError, match=f"cannot meet at port {port} of this host: Address already in use"):
            NodeStore("localhost", port, SECRET)
