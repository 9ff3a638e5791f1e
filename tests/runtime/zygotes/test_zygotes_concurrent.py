"""Zygotes whose tasks run at the same time: one process per task, whose end leaves nothing and holds up no other."""

from __future__ import annotations

import os
import platform
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.nursery import Nursery, deadline, message_of
from support.processes import is_gone, wait_until, wait_until_gone

from pytest_aorta.runtime.zygote import Task, TaskEnd, Zygote, ZygoteError
from pytest_aorta.runtime.zygote_main import _SMALL_PAGES

#: Leaves orphans behind as it is asked to, tells their pids, and runs until it is told to end.
SOURCE = """
    import os, signal, subprocess, sys, time
    open("imports", "a").write("x")

    def prepare(argument):
        return {"pid": os.getpid()}

    def orphan(how):
        read, write = os.pipe()
        if os.fork() == 0:
            if how != "tame":
                os.setsid()
            if how == "bare":
                sleeper = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
                os.write(write, str(sleeper.pid).encode())
            elif os.fork() == 0:
                if how != "tame":
                    os.setsid()
                if how == "tidy":
                    def tidy(*_):
                        time.sleep(0.3)
                        open("tidied", "w").close()
                        os._exit(0)
                    signal.signal(signal.SIGTERM, tidy)
                elif how == "stubborn":
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.write(write, str(os.getpid()).encode())
                while True:
                    time.sleep(600)
            os._exit(0)
        os.wait()
        return int(os.read(read, 20))

    def run(payload, channel):
        if payload.get("stubborn"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        channel.send({"value": [orphan(how) for how in payload.get("orphans", ())]})
        channel.receive()
"""


def concurrent(nursery: Nursery, before: str = "") -> Zygote:
    zygote = nursery.start(before + SOURCE)
    zygote.wait_ready()
    return zygote


def begin(zygote: Zygote, **payload: Any) -> tuple[Task, list[int]]:
    """A task, and the orphans that it has made."""
    task = zygote.start_task(payload)
    return task, message_of(task)


def end_of(task: Task) -> TaskEnd:
    """How it ended."""
    while task.next_message(deadline()) is not None:
        pass
    task.close()
    assert task.ended is not None
    return task.ended


def let_go(task: Task) -> None:
    """Have it end by itself."""
    task.send({})
    assert end_of(task).returncode == 0


@pytest.fixture
def zygote(nursery: Nursery) -> Zygote:
    return concurrent(nursery)


# Side by side.


def test_each_task_is_one_process_and_none_stands_by(nursery: Nursery, zygote: Zygote) -> None:
    assert psutil.Process(zygote.info["pid"]).children() == []

    tasks = [begin(zygote)[0] for _ in range(5)]

    below = {process.pid for process in psutil.Process(zygote.info["pid"]).children(recursive=True)}
    assert below == {task.pid for task in tasks}
    assert {os.getsid(task.pid) for task in tasks} == below
    assert (nursery.path / "imports").read_text() == "x"
    for task in tasks:
        let_go(task)
    assert psutil.Process(zygote.info["pid"]).children() == []


def test_a_child_keeps_the_files_that_it_was_given_and_no_other_has_them(zygote: Zygote, tmp_path: Path) -> None:
    def holders() -> set[int]:
        """Processes below the zygote, and itself, that have the file open."""
        processes = [psutil.Process(zygote.info["pid"]), *psutil.Process(zygote.info["pid"]).children()]
        return {each.pid for each in processes if str(file) in {open_file.path for open_file in each.open_files()}}

    file = tmp_path / "lock"
    with file.open("w") as opened:
        task = zygote.start_task({}, descriptors=[opened.fileno()])
    message_of(task)
    other, _ = begin(zygote)

    assert holders() == {task.pid}
    let_go(task)
    let_go(other)


# The end of one.


def test_what_a_child_has_left_is_ended_before_its_end_is_reported_and_nothing_else(zygote: Zygote) -> None:
    task, orphans = begin(zygote, orphans=["fork", "stubborn", "bare"])
    other, others = begin(zygote, orphans=["fork", "bare"])

    os.kill(task.pid, signal.SIGSEGV)

    ended = end_of(task)
    assert ended.returncode == -signal.SIGSEGV
    assert all(map(is_gone, orphans))
    assert len(ended.swept) == 3
    assert not any(map(is_gone, [other.pid, *others]))
    let_go(other)
    assert all(map(is_gone, others))


def test_a_kill_wakes_what_is_stopped(zygote: Zygote) -> None:
    task, _ = begin(zygote)
    os.kill(task.pid, signal.SIGSTOP)
    task.kill(600)
    assert end_of(task).returncode == -signal.SIGTERM


def test_descendants_have_their_grace_although_the_child_has_ended(nursery: Nursery, zygote: Zygote) -> None:
    task, (orphan,) = begin(zygote, orphans=["tidy"])
    task.kill(600)
    assert end_of(task).returncode == -signal.SIGTERM
    assert is_gone(orphan)
    assert (nursery.path / "tidied").exists()


def test_a_grace_holds_up_no_other_task(zygote: Zygote) -> None:
    stubborn, _ = begin(zygote, stubborn=True)
    lingering, (orphan,) = begin(zygote, orphans=["stubborn"])
    for task in (stubborn, lingering):
        task.kill(600)
    wait_until_gone([lingering.pid])

    dying, orphans = begin(zygote, orphans=["fork", "bare"])
    os.kill(dying.pid, signal.SIGKILL)
    end_of(dying)
    assert all(map(is_gone, orphans))
    let_go(begin(zygote)[0])
    assert not is_gone(stubborn.pid)
    assert not is_gone(orphan)

    for task, code in ((stubborn, -signal.SIGKILL), (lingering, -signal.SIGTERM)):
        task.kill(0.0)  # the shorter grace counts
        assert end_of(task).returncode == code
    assert is_gone(orphan)


def test_tasks_that_end_together_name_what_they_have_left_themselves(zygote: Zygote) -> None:
    pairs = [begin(zygote, orphans=["tame", "tame"]) for _ in range(3)]
    os.kill(zygote.info["pid"], signal.SIGSTOP)
    for task, _ in pairs:
        os.kill(task.pid, signal.SIGKILL)
    os.kill(zygote.info["pid"], signal.SIGCONT)

    for task, orphans in pairs:
        swept = end_of(task).swept
        assert len(swept) == len(orphans)
        assert all(any(f"(pid {pid})" in name for name in swept) for pid in orphans)


def test_tasks_are_ended_together_with_all_descendants_which_they_do_not_name_then(zygote: Zygote) -> None:
    pairs = [begin(zygote, orphans=["fork", "stubborn", "bare"]) for _ in range(3)]
    for task, _ in pairs:
        task.kill(0.2)
    for task, orphans in pairs:
        ended = end_of(task)
        assert (ended.returncode, ended.swept, ended.unkillable) == (-signal.SIGTERM, [], [])
        assert all(map(is_gone, orphans))


def test_a_task_that_its_parent_forgets_is_ended(zygote: Zygote) -> None:
    task, orphans = begin(zygote, orphans=["fork"])
    pid = task.pid
    task.close()
    del task
    wait_until_gone([pid, *orphans])


# Beginnings that fail.


def test_a_fork_that_fails_and_a_child_that_dies_before_its_task_are_errors_and_the_next_one_works(
    nursery: Nursery,
) -> None:
    zygote = concurrent(
        nursery,
        """
    import errno, os
    fork, setsid = os.fork, os.setsid

    def fork_or_not():
        if os.path.exists("full"):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return fork()

    def setsid_or_die():
        setsid()
        if os.path.exists("deadly"):
            os._exit(3)

    os.fork, os.setsid = fork_or_not, setsid_or_die
        """,
    )
    task, _ = begin(zygote)
    (nursery.path / "full").touch()
    with pytest.raises(ZygoteError, match=r"the zygote cannot fork: \[Errno 11\] Resource temporarily unavailable"):
        begin(zygote)
    (nursery.path / "full").unlink()
    (nursery.path / "deadly").touch()
    assert end_of(zygote.start_task({"large": "x" * 10**7})).returncode == 3
    (nursery.path / "deadly").unlink()
    let_go(begin(zygote)[0])
    let_go(task)


# The ends of others.


def test_a_zygote_that_is_killed_takes_all_with_it(nursery: Nursery, zygote: Zygote) -> None:
    tasks = [begin(zygote, orphans=["fork", "stubborn"])[0] for _ in range(4)]
    pids = [task.pid for task in tasks]

    os.kill(zygote.info["pid"], signal.SIGKILL)
    wait_until_gone(pids)  # as they have to where this process is killed together with the zygote

    with ThreadPoolExecutor(4) as threads:  # all find it out at the same time
        errors = [threads.submit(end_of, task).exception() for task in tasks]
    assert [type(error) for error in errors] == [ZygoteError] * 4
    assert {str(error) for error in errors} == {f"the zygote (pid {zygote.info['pid']}) died with signal SIGKILL"}
    assert nursery.alive() == []
    with pytest.raises(ZygoteError, match="died with signal SIGKILL"):
        zygote.start_task({})


def test_a_zygote_that_is_closed_takes_all_with_it(nursery: Nursery, zygote: Zygote) -> None:
    task, orphans = begin(zygote, stubborn=True, orphans=["stubborn", "bare"])
    task.kill(600)
    zygote.close()
    assert nursery.alive() == []
    assert all(map(is_gone, orphans))
    with pytest.raises(ZygoteError, match="was closed"):
        end_of(task)


# One that stands by.


def test_once_a_task_has_ended_a_child_that_has_rehearsed_stands_by_and_knows_no_task(nursery: Nursery) -> None:
    source = SOURCE + "\n    def rehearse():\n        open('rehearsed', 'a').write('x')\n"
    zygote = nursery.start(source)
    zygote.wait_ready()
    below = psutil.Process(zygote.info["pid"]).children

    task, _ = begin(zygote)
    let_go(task)
    wait_until(lambda: [each.pid for each in below()] not in ([], [task.pid]), "one stands by")
    (standby,) = (each.pid for each in below())
    wait_until(lambda: (nursery.path / "rehearsed").read_text() == "xx", "it has rehearsed")
    second, _ = begin(zygote)

    assert second.pid == standby
    wait_until(lambda: len(below()) == 2, "one stands by while it runs")
    let_go(second)
    wait_until(lambda: len(below()) == 1, "the second has ended")
    (standby,) = (each.pid for each in below())
    os.kill(standby, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(standby), "it was reaped")
    third, _ = begin(zygote)
    assert third.pid != standby
    let_go(third)
    left = [each.pid for each in below()]
    zygote.close()
    assert all(map(is_gone, left))


# Many, one after the other.


def test_each_of_many_tasks_has_the_zygotes_memory_to_itself_also_once_that_is_in_huge_pages(nursery: Nursery) -> None:
    source = """
        import os
        held = bytearray(bytes(range(256)) * 2**16)

        def prepare(argument):
            return {"pid": os.getpid()}

        def run(payload, channel):
            channel.send({"value": held == bytes(range(256)) * 2**16})
            held[:] = bytes(len(held))
            if payload == "wait":
                channel.receive()
    """
    zygote = nursery.start(source)

    told = [nursery.run(zygote).told for _ in range(_SMALL_PAGES - 1)]
    both = [zygote.start_task("wait") for _ in range(2)]
    told += [[message_of(task)] for task in both]
    os.kill(zygote.info["pid"], signal.SIGSTOP)  # it hears of the end of both at once
    for task in both:
        task.send({})
    pids = [task.pid for task in both]
    wait_until(lambda: {psutil.Process(pid).status() for pid in pids} == {psutil.STATUS_ZOMBIE}, "they have ended")
    os.kill(zygote.info["pid"], signal.SIGCONT)
    told += [nursery.run(zygote).told for _ in range(10)]

    assert told == [[True]] * (_SMALL_PAGES + 11)
    pages = re.search(r"AnonHugePages: +(\d+) kB", Path(f"/proc/{zygote.info['pid']}/smaps_rollup").read_text())
    kernel = tuple(map(int, platform.release().split(".")[:2]))
    if kernel >= (6, 1) and Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        assert pages is not None
        assert int(pages[1]) > 0
