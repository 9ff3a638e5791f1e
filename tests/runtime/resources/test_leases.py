"""Leases: real processes and threads compete for devices that are only numbers."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.processes import wait_until

from pytest_aorta.runtime.resources.leases import Lease, LeaseCancelled, LeaseError, Leases, _is_locked, default_folder

#: Seconds after which a wait is given up as a hang; nothing is measured.
HANG = 60.0


def hung() -> Callable[[], bool]:
    """For ``cancelled``: true when something hangs."""
    give_up = time.monotonic() + HANG
    return lambda: time.monotonic() > give_up


def looks(times: int) -> Callable[[], bool]:
    """For ``cancelled``: true after so many looks at the devices."""
    left = iter(range(times))
    return lambda: next(left, None) is None


def take(pool: Leases, count: int) -> Lease:
    """Devices that have to be there sooner or later."""
    return pool.acquire(count, cancelled=hung())


def is_refused(pool: Leases, count: int) -> bool:
    try:
        pool.acquire(count, cancelled=looks(5)).release()
    except LeaseCancelled:
        return True
    return False


def waiting(folder: Path, device: int) -> None:
    """Return when a request for a pool that ends with this device waits."""
    wait_until(lambda: _is_locked(folder / f"turn-{device}.lock"), f"the turn of device {device}")


class Processes:
    """Python processes that import ``Leases``; their source knows ``folder`` and ``say`` and ends with its input."""

    HEAD = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from pytest_aorta.runtime.resources.leases import Leases\n"
        "folder = Path(sys.argv[1])\n"
        "def say(*words): os.write(1, (' '.join(map(str, words)) + '\\n').encode())\n"
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, source: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", self.HEAD + source, str(self.folder), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "leases"


@pytest.fixture
def processes(folder: Path) -> Iterator[Processes]:
    processes = Processes(folder)
    yield processes
    for process in processes.started:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=HANG)
    assert process.returncode == 0


@contextlib.contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[threading.Thread]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread
    thread.join(HANG)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


# One holder at a time.

COMPETE = """
import random
log, number = Path(sys.argv[2]), sys.argv[3]
draw = random.Random(number)
pool = Leases((0, 1), folder)
lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
say("ready")
sys.stdin.readline()
for turn in range(150):
    with pool.acquire(draw.choice((1, 1, 2))) as lease:
        for device in lease.devices:
            os.close(os.open(log.parent / f"used-{device}", os.O_CREAT | os.O_EXCL))
        os.write(lines, f"{number} takes {lease.devices}\\n".encode())
        for device in lease.devices:
            os.unlink(log.parent / f"used-{device}")
        os.write(lines, f"{number} gives {lease.devices}\\n".encode())
say("done")
"""


def test_two_processes_that_start_at_once_never_hold_one_device_together(processes: Processes, tmp_path: Path) -> None:
    log = tmp_path / "log"
    both = [processes.start(COMPETE, log, number) for number in range(2)]
    assert [line_of(process) for process in both] == ["ready", "ready"]
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()

    assert [line_of(process) for process in both] == ["done", "done"]
    lines = log.read_text().splitlines()
    assert Counter(line.split(" (")[0] for line in lines) == dict.fromkeys(
        ("0 takes", "0 gives", "1 takes", "1 gives"), 150
    )
    held: dict[str, str] = {}
    for line in lines:
        number, verb, *devices = line.replace("(", "").replace(")", "").replace(",", "").split()
        for device in devices:
            if verb == "takes":
                assert device not in held, line
                held[device] = number
            else:
                assert held.pop(device) == number, line


def test_what_can_never_be_granted_is_refused_at_once(folder: Path) -> None:
    pool = Leases((0,), folder)
    with pool.acquire(1):
        with pytest.raises(ValueError, match=r"^needs 2 devices, the pool has 1: 0$"):
            pool.acquire(2)
        with pytest.raises(ValueError, match=r"^needs 1 devices, the pool has 0: none$"):
            Leases((), folder).acquire(1)
        with pytest.raises(ValueError, match="0 or more, not -1"):
            pool.acquire(-1)
        with pytest.raises(ValueError, match="names a device twice"):
            Leases((0, 1, 0), folder)


# Giving back.


def test_a_lease_ends_with_its_block_and_twice_is_harmless(folder: Path) -> None:
    pool = Leases((0,), folder)
    with pool.acquire(1) as lease:
        (descriptor,) = lease.descriptors
        assert not os.get_inheritable(descriptor)
    other = take(pool, 1)
    lease.release()

    assert lease.descriptors == ()
    assert list(pool.holders()) == [0]
    assert is_refused(pool, 1)
    other.release()


def test_a_process_with_the_descriptors_keeps_the_devices_of_a_killed_one(processes: Processes, folder: Path) -> None:
    holder = processes.start(
        "lease = Leases((0, 1), folder).acquire(1)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import sys; print(0, flush=True); sys.stdin.read()'],\n"
        "                         pass_fds=lease.descriptors)\n"
        "child.wait()"
    )
    assert line_of(holder) == "0"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    pool = Leases((0, 1), folder)

    assert is_refused(pool, 2)  # all or nothing
    assert pool.holders() == {0: f"a process that pid {holder.pid} (-c) has left behind"}

    holder.communicate()  # ends the input of the child, which shares it
    assert take(pool, 2).devices == (0, 1)


FORK = """
pool = Leases((0,), folder)
lease = pool.acquire(1)
(number,) = lease.descriptors
ends, alive = os.pipe()
if os.fork() == 0:
    os.close(alive)
    again = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]  # one gets the number of the descriptor
    lease.release()
    say("child", number in again, len(lease.descriptors), os.fstat(number).st_rdev != 0)
    os.read(ends, 1)
    os._exit(0)
say("parent", list(pool.holders()))
sys.stdin.readline()
lease.release()
looks = iter(range(500))
say("again", pool.acquire(1, cancelled=lambda: next(looks, None) is None).devices)
"""


def test_a_forked_child_neither_keeps_nor_ends_the_leases_of_its_parent(processes: Processes, folder: Path) -> None:
    parent = processes.start(FORK)

    assert sorted([line_of(parent), line_of(parent)]) == ["child True 0 True", "parent [0]"]
    assert is_refused(Leases((0,), folder), 1)
    assert parent.stdin is not None
    parent.stdin.write("go\n")
    parent.stdin.flush()
    assert line_of(parent) == "again (0,)"
    end(parent)


# Waiting.


def test_a_wait_can_be_given_up_and_takes_nothing(folder: Path) -> None:
    pool = Leases((0, 1), folder)

    def fails() -> bool:
        raise KeyboardInterrupt

    with pool.acquire(1):
        with pytest.raises(LeaseCancelled, match="gave up waiting for 2 of the devices 0,1"):
            pool.acquire(2, cancelled=looks(3))
        with pytest.raises(LeaseCancelled):
            pool.acquire(1, cancelled=lambda: True)
        with pytest.raises(KeyboardInterrupt):
            pool.acquire(2, cancelled=fails)
        assert pool.holders() == {0: f"pid {os.getpid()} ({pool.label})"}
        assert Leases((1,), folder).holders() == {}
        take(pool, 1).release()


def test_no_request_passes_one_for_more_devices_and_those_for_others_are_not_held_up(folder: Path) -> None:
    order: list[str] = []
    pool = Leases((0, 1), folder)
    first = pool.acquire(1)

    def ask(name: str, count: int) -> None:
        with take(pool, count):
            order.append(name)

    with in_thread(lambda: ask("big", 2)):
        waiting(folder, 1)
        assert is_refused(pool, 1)
        assert Leases((2, 3), folder).acquire(2).devices == (2, 3)
        with in_thread(lambda: ask("small", 1)):
            first.release()

    assert order == ["big", "small"]


def test_a_kill_withdraws_what_a_process_waits_for(processes: Processes, folder: Path) -> None:
    pool = Leases((0, 1), folder)
    with pool.acquire(1):
        waiter = processes.start("Leases((0, 1), folder).acquire(2)")
        waiting(folder, 1)
        assert is_refused(pool, 1)

        waiter.send_signal(signal.SIGKILL)
        take(pool, 1).release()


SMALL = """
pool = Leases((0, 1), folder)
say("ready")
while not (folder / "served").exists():
    pool.acquire(1).release()
"""


def test_a_stream_of_small_requests_does_not_starve_a_big_one(processes: Processes, folder: Path) -> None:
    """From threads that never pause and from another process; each of them is served again when the big one is done."""
    other = processes.start(SMALL)
    assert line_of(other) == "ready"
    served = threading.Event()
    turns, using = Counter[int](), Counter[int]()
    clashes: list[int] = []

    def hold(count: int) -> None:
        with take(Leases((0, 1), folder), count) as lease:
            using.update(lease.devices)
            clashes.extend(device for device in lease.devices if using[device] != 1)
            using.subtract(lease.devices)

    def small(number: int) -> None:
        while not served.is_set() or turns[number] == 0:
            hold(1)
            turns[number] += 1

    with contextlib.ExitStack() as stack:
        for number in range(3):
            stack.enter_context(in_thread(partial(small, number)))
        for _ in range(5):
            hold(2)
        served.set()
        (folder / "served").touch()
    end(other)
    assert sorted(turns) == [0, 1, 2]
    assert clashes == []


# The folder in which processes agree on who holds a device.


def test_all_processes_of_a_user_agree_on_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_AORTA_LEASES_DIR", raising=False)
    monkeypatch.setattr(platform, "node", lambda: "node 7/../x")
    folder = default_folder(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))

    assert default_folder(tmp_path) == folder == tmp_path / f"pytest-aorta-{os.getuid()}/node_7_.._x/devices"
    assert folder.parent.parent.stat().st_mode & 0o777 == 0o700
    with Leases((0,), folder).acquire(1):
        assert is_refused(Leases((0,), default_folder(tmp_path)), 1)

    monkeypatch.setenv("PYTEST_AORTA_LEASES_DIR", str(tmp_path / "shared/by us"))
    assert Leases((0,)).folder == tmp_path / "shared/by us"


def test_a_folder_that_others_can_write_to_or_that_cannot_be_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_AORTA_LEASES_DIR", raising=False)
    user = os.getuid()
    ours = tmp_path / f"pytest-aorta-{user}"

    with pytest.raises(LeaseError, match=f"{tmp_path}/none/pytest-aorta-.*the lock files of devices need a folder"):
        default_folder(tmp_path / "none")

    ours.symlink_to(tmp_path)
    with pytest.raises(LeaseError, match=f"{ours} must be a folder that belongs to user {user}"):
        default_folder(tmp_path)

    ours.unlink()
    ours.mkdir()
    ours.chmod(0o777)
    with pytest.raises(LeaseError, match="no other user can write to"):
        default_folder(tmp_path)

    ours.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    (tmp_path / f"pytest-aorta-{user + 1}").mkdir(mode=0o700)  # not theirs
    with pytest.raises(LeaseError, match=f"belongs to user {user + 1}"):
        default_folder(tmp_path)
