"""Whether the failure of a rank follows from another rank: that of torch.distributed may, the rank's own does not."""

from __future__ import annotations

import pytest

from pytest_aorta.launch.diagnosis.traces import complaint_in, relation_to_a_peer
from pytest_aorta.trials.records import Failure

TORCH = "/venv/lib/python3.11/site-packages/torch"
GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"


def frames(*files: str) -> str:
    calls = "".join(f'  File "{file}", line {line}, in f\n    call()\n' for line, file in enumerate(files, 1))
    return f"Traceback (most recent call last):\n{calls}"


ALL_REDUCE = frames("/me/train.py", f"{TORCH}/distributed/c10d_logger.py", f"{TORCH}/distributed/distributed_c10d.py")
OWN = frames("/me/train.py", "/me/shards.py")
SOCKET = frames("/me/shards.py", "/usr/lib/python3.11/socket.py")
BACKWARD = frames("/me/train.py", f"{TORCH}/_tensor.py", f"{TORCH}/autograd/graph.py")
AFTER = "\nDuring handling of the above exception, another exception occurred:\n\n"

CASES: list[tuple[str, str, str, str | None, str | None]] = [
    # What it is, the type, the message, the traceback without its last line, and what it says of a peer.
    ("a server of its own", "TimeoutError", "Timed out waiting for shard server", OWN, None),
    ("and without a traceback", "TimeoutError", "Timed out waiting for shard server", None, None),
    ("a connection of its own", "ConnectionResetError", "[Errno 104] Connection reset by peer", SOCKET, None),
    ("a pipe of its own", "BrokenPipeError", "[Errno 32] Broken pipe", OWN, None),
    ("a refused data base", "OperationalError", "Connection refused (db:5432)", SOCKET, None),
    (
        "a worker of a DataLoader",
        "RuntimeError",
        "DataLoader timed out after 5 s",
        frames("/me/a.py", f"{TORCH}/utils/data/dataloader.py"),
        None,
    ),
    ("a wrong argument of a collective", "ValueError", "tensor list must be the group's size", ALL_REDUCE, None),
    (
        "gloo waits",
        "RuntimeError",
        f"{GLOO}/unbound_buffer.cc:78] Timed out waiting 4000ms for recv",
        ALL_REDUCE,
        "gave up",
    ),
    (
        "gloo loses a peer",
        "RuntimeError",
        f"{GLOO}/pair.cc:553] Connection closed by peer [::1]:1",
        ALL_REDUCE,
        "peer lost",
    ),
    (
        "in the gradient hooks of DDP",
        "RuntimeError",
        f"{GLOO}/pair.cc:553] Connection closed by peer [::1]:1",
        BACKWARD,
        "peer lost",
    ),
    (
        "without a traceback",
        "RuntimeError",
        f"{GLOO}/unbound_buffer.cc:78] Timed out waiting 4000ms for recv",
        None,
        "gave up",
    ),
    ("words without their place, by the frame", "RuntimeError", "Connection reset by peer", ALL_REDUCE, "peer lost"),
    ("the store, by its type", "DistStoreError", "wait timeout after 10000ms, keys: /default_pg/0", OWN, "gave up"),
    (
        "a client of the store",
        "DistNetworkError",
        "The client socket has timed out after 1000ms while trying to connect to (a, 1)",
        None,
        "gave up",
    ),
    (
        "not all came",
        "DistStoreError",
        "Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
        None,
        "gave up",
    ),
    (
        "NCCL",
        "DistBackendError",
        "NCCL error in: NCCLUtils.hpp:275, remote process exited or there was a network error",
        BACKWARD,
        "peer lost",
    ),
    ("a barrier", "RuntimeError", "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms", ALL_REDUCE, "gave up"),
    (
        "other collectives elsewhere",
        "RuntimeError",
        "Detected mismatch between collectives on ranks. Rank 1 is running ...",
        ALL_REDUCE,
        "gave up",
    ),
    ("an error of the GPU", "DistBackendError", "NCCL error: unhandled cuda error", ALL_REDUCE, None),
    (
        "what a trainer made of it",
        "TrainingFailed",
        "step 3 failed",
        f"{ALL_REDUCE}RuntimeError: {GLOO}/pair.cc:553] Connection closed by peer [::1]:1\n{AFTER}{OWN}",
        "peer lost",
    ),
    (
        "what it made of its own",
        "TrainingFailed",
        "step 3 failed",
        f"{OWN}TimeoutError: Timed out waiting for shards\n{AFTER}{OWN}",
        None,
    ),
]


@pytest.mark.parametrize(
    ("type_name", "message", "traceback", "relation"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_an_exception_says_of_a_peer(
    type_name: str, message: str, traceback: str | None, relation: str | None
) -> None:
    if traceback is not None:
        traceback += f"{type_name}: {message}\n"

    assert relation_to_a_peer(Failure("run", "exception", message, type_name, traceback)) == relation


@pytest.mark.parametrize(
    ("log", "complains"),
    [
        ("shards.py: Timed out waiting for shard server, trying again\nfree(): invalid pointer\n", False),
        ("[rank0]:[E1123 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation timeout: ...", True),
        ("  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4.", True),
    ],
)
def test_what_a_log_says_of_a_peer(log: str, complains: bool) -> None:
    assert (complaint_in(log) is not None) == complains
