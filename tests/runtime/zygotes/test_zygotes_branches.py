"""Branches: several tasks of one specification at the same time, after one import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.nursery import Nursery, deadline, finish, message_of, nursery_at
from support.processes import MARK, is_gone, wait_until, wait_until_gone

from pytest_aorta.runtime.zygote import Branch, Server, Zygote, ZygoteError, start_branch

#: Tells pids, and leaves an orphan behind: forked only ("fork"), or executed with an environment of its own ("bare").
#: Ends when the file ``payload["until"]`` is there.
SOURCE = """
    import os, signal, subprocess, sys, time
    open("imports", "a").write("x")
    big = bytearray(10_000_000)

    def prepare(argument):
        return {"pid": os.getpid()}

    def orphan(how):
        read, write = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if how == "bare":
                sleeper = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
                os.write(write, str(sleeper.pid).encode())
            elif os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.write(write, str(os.getpid()).encode())
                while True:
                    time.sleep(600)
            os._exit(0)
        os.wait()
        return int(os.read(read, 20))

    def run(payload, send):
        send({"value": [os.getpid(), os.getppid(), orphan(payload["orphan"]) if "orphan" in payload else None]})
        if "announce" in payload:
            open(payload["announce"], "w").close()
        if "until" in payload:
            while not os.path.exists(payload["until"]):
                time.sleep(0.005)
        print("out of", os.getpid())
"""


#: Where parents find the package ``support``.
TESTS = str(Path(__file__).parents[2])


@pytest.fixture
def root(nursery: Nursery) -> Zygote:
    return nursery.start(SOURCE)


def branch_of(root: Zygote) -> tuple[Branch, int]:
    branch = start_branch(root)
    assert branch.pid is not None
    return branch, branch.pid


# Tasks at the same time.


def test_tasks_of_one_zygote_run_at_the_same_time_after_one_import(nursery: Nursery, root: Zygote) -> None:
    """Each waits for the other one's file."""
    branch, pid = branch_of(root)

    tasks = [
        nursery.submit(root, {"announce": "a", "until": "b"}),
        nursery.submit(branch, {"announce": "b", "until": "a"}),
    ]

    done = [finish(task) for task in tasks]
    assert [one.returncode for one in done] == [0, 0]
    assert [one.told[0][1] for one in done] == [root.info["pid"], pid]
    assert [one.stdout for one in done] == [f"out of {task.pid}\n" for task in tasks]
    assert (nursery.path / "imports").read_text() == "x"
    assert branch.info == root.info


def test_a_branch_serves_one_task_after_the_other_each_in_a_process_of_its_own(nursery: Nursery, root: Zygote) -> None:
    branch, pid = branch_of(root)

    told = [nursery.run(branch, {}).told[0] for _ in range(5)]

    assert len({child for child, _, _ in told}) == 5
    assert {parent for _, parent, _ in told} == {pid}


def test_a_branch_is_made_while_its_zygote_waits_for_a_task_to_end(nursery: Nursery) -> None:
    root = nursery.start(
        """
        import signal, time
        def run(payload, send):
            signal.signal(signal.SIGTERM, lambda *_: send({"value": "terminated"}))
            send({"value": "ready"})
            while payload:
                time.sleep(600)
        """
    )
    task = nursery.submit(root, True)
    assert message_of(task) == "ready"
    task.kill(grace=600)
    assert message_of(task) == "terminated"

    branch = start_branch(root)
    assert nursery.run(branch, False).told == ["ready"]

    task.kill(grace=0)
    assert finish(task).returncode == -signal.SIGKILL
    assert nursery.run(branch, False).told == nursery.run(root, False).told == ["ready"]


def test_a_task_on_a_branch_is_killed_with_its_stacks_and_no_other(nursery: Nursery, root: Zygote) -> None:
    branch, _ = branch_of(root)
    other = nursery.submit(root, {"until": "end"})
    task = nursery.submit(branch, {"until": "end", "orphan": "fork"})
    _, _, orphan = message_of(task)
    message_of(other)

    task.kill(grace=0.1)  # which the orphan sits out

    done = finish(task)
    assert done.returncode < 0
    assert "in run" in done.stacks
    assert is_gone(orphan)
    assert not is_gone(other.pid)
    (nursery.path / "end").touch()
    assert finish(other).returncode == 0


@pytest.mark.parametrize("how", ["fork", "bare"])
def test_orphans_are_those_of_their_own_task(nursery: Nursery, root: Zygote, how: str) -> None:
    servers = [root, start_branch(root), start_branch(root)]
    tasks = [nursery.submit(server, {"orphan": how, "until": f"end{number}"}) for number, server in enumerate(servers)]
    orphans = [message_of(task)[2] for task in tasks]

    for number in (1, 0, 2):
        (nursery.path / f"end{number}").touch()
        (swept,) = finish(tasks[number]).ended["swept"]
        assert f"(pid {orphans[number]})" in swept
        assert is_gone(orphans[number])
        assert [is_gone(orphans[later]) for later in (1, 0, 2)[(1, 0, 2).index(number) + 1 :]].count(True) == 0


def test_many_branches_and_tasks_leave_no_descriptor_and_no_zombie(nursery: Nursery, root: Zygote) -> None:
    nursery.run(root, {})
    zygote = psutil.Process(root.info["pid"])

    def counts() -> tuple[int, int, int]:
        return len(zygote.children()), zygote.num_fds(), psutil.Process().num_fds()

    wait_until(lambda: counts()[0] == 1, "only the child that stands by")
    before = counts()

    for _ in range(5):
        branch = start_branch(root)
        nursery.run(branch, {"orphan": "fork"})
        branch.close()

    wait_until(lambda: counts() == before, f"{before} again")


# What cannot have branches.


def test_a_zygote_that_must_not_be_forked_has_no_branches(nursery: Nursery) -> None:
    threaded = nursery.start("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()")
    fresh = nursery.start("", fresh=True)

    for zygote in (threaded, fresh):
        with pytest.raises(ValueError, match="no branches"):
            start_branch(zygote)


def test_a_zygote_that_has_died_has_no_branches(nursery: Nursery, root: Zygote) -> None:
    root.wait_ready()
    os.kill(root.info["pid"], signal.SIGKILL)

    with pytest.raises(ZygoteError, match=r"the zygote \(pid \d+\) died with signal SIGKILL"):
        start_branch(root)


def test_a_zygote_that_cannot_fork_says_so_and_lives_on(nursery: Nursery) -> None:
    root = nursery.start(
        """
        import errno, os
        fork = os.fork
        calls = iter([fork, None])
        def sometimes():
            if (now := next(calls, fork)) is None:
                raise BlockingIOError(errno.EAGAIN, "no more processes")
            return now()
        os.fork = sometimes
        def run(payload, send):
            send({"value": payload})
        """
    )

    with pytest.raises(ZygoteError, match=r"the zygote cannot fork: .*no more processes"):
        start_branch(root)

    assert nursery.run(start_branch(root), 1).told == nursery.run(root, 1).told == [1]


# Deaths.


def test_a_branch_that_is_killed_takes_its_task_along_and_no_other(nursery: Nursery, root: Zygote) -> None:
    branch, pid = branch_of(root)
    mine = nursery.submit(root, {"orphan": "fork", "until": "end"})
    lost = nursery.submit(branch, {"orphan": "fork", "until": "end"})
    left, kept = message_of(lost)[2], message_of(mine)[2]

    os.kill(pid, signal.SIGKILL)

    with pytest.raises(ZygoteError, match=rf"the zygote's branch \(pid {pid}\) died with signal SIGKILL") as caught:
        finish(lost)
    assert caught.value.returncode == -signal.SIGKILL
    assert is_gone(lost.pid)
    assert is_gone(left)
    assert not is_gone(kept)
    (nursery.path / "end").touch()
    (swept,) = finish(mine).ended["swept"]
    assert f"(pid {kept})" in swept
    assert not branch.alive()
    assert nursery.run(start_branch(root), {}).returncode == 0


def test_of_a_killed_branch_also_what_has_no_tag_is_ended(nursery: Nursery, root: Zygote) -> None:
    branch, pid = branch_of(root)
    task = nursery.submit(branch, {"orphan": "bare", "until": "end"})
    orphan = message_of(task)[2]

    os.kill(pid, signal.SIGKILL)

    with pytest.raises(ZygoteError):
        finish(task)
    assert is_gone(orphan)


def test_a_branch_that_is_killed_while_idle_is_noticed(nursery: Nursery, root: Zygote) -> None:
    branch, pid = branch_of(root)
    assert branch.alive()

    os.kill(pid, signal.SIGKILL)

    wait_until(lambda: not branch.alive(), "the end of the branch")
    with pytest.raises(ZygoteError, match="died with signal SIGKILL"):
        nursery.run(branch, {})


def test_what_the_zygote_has_printed_is_told_with_the_death_of_a_branch(nursery: Nursery) -> None:
    root = nursery.start("print('a warning', flush=True)\n" + textwrap.dedent(SOURCE))
    branch, pid = branch_of(root)
    os.kill(pid, signal.SIGSEGV)

    with pytest.raises(ZygoteError, match=r"(?s)died with signal SIGSEGV\na warning\n.*Segmentation fault"):
        nursery.run(branch, {})


def test_a_killed_zygote_takes_its_branches_along(nursery: Nursery, root: Zygote) -> None:
    servers: list[Server] = [root, start_branch(root), start_branch(root)]
    tasks = [nursery.submit(server, {"orphan": "fork", "until": "end"}) for server in servers]
    for task in tasks:
        message_of(task)

    os.kill(root.info["pid"], signal.SIGKILL)

    for task in tasks:
        with pytest.raises(ZygoteError, match=r"the zygote \(pid \d+\) died with signal SIGKILL"):
            finish(task)
    assert nursery.alive() == []


def test_a_closed_zygote_takes_its_branches_along(nursery: Nursery, root: Zygote) -> None:
    branch, _ = branch_of(root)
    task = nursery.submit(branch, {"orphan": "fork", "until": "end"})
    message_of(task)

    root.close()

    assert nursery.alive() == []
    with pytest.raises(ZygoteError, match="was closed"):
        finish(task)
    branch.close()


def test_a_closed_branch_leaves_everything_else(nursery: Nursery, root: Zygote) -> None:
    branch, pid = branch_of(root)
    task = nursery.submit(branch, {"orphan": "fork", "until": "end"})
    orphan = message_of(task)[2]

    branch.close()
    branch.close()

    wait_until_gone([pid, task.pid, orphan])
    assert nursery.run(root, {}).returncode == 0


def test_a_branch_that_is_stopped_is_closed_all_the_same(nursery: Nursery, root: Zygote) -> None:
    branch, pid = branch_of(root)
    task = nursery.submit(branch, {"until": "end"})
    message_of(task)
    os.kill(pid, signal.SIGSTOP)

    branch.close(grace=0.1)

    wait_until_gone([pid, task.pid])
    assert nursery.run(root, {}).returncode == 0


_PARENT = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from support.nursery import Nursery
from pytest_aorta.runtime.zygote import start_branch
nursery = Nursery(Path({folder!r}))
root = nursery.start({source!r})
servers = [root, start_branch(root), start_branch(root), start_branch(root)]
for server in servers[{first}:]:
    nursery.submit(server, {{"orphan": "fork", "until": "end"}}).next_message(None)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("first", [0, 1, 4])
def test_nothing_survives_a_parent_that_is_killed_with_branches(tmp_path: Path, first: int) -> None:
    script = _PARENT.format(tests=TESTS, folder=str(tmp_path), source=SOURCE, first=first)
    with nursery_at(tmp_path) as nursery:
        environ = {**os.environ, MARK: nursery.mark}
        with subprocess.Popen([sys.executable, "-c", script], env=environ, stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            try:
                assert parent.stdout.readline() == "ready\n"
                wait_until(lambda: len(nursery.alive()) >= 8, "the parent, four servers, and children that stand by")
            finally:
                parent.kill()

        wait_until(lambda: nursery.alive() == [], "the end of everything that the parent had started")


# From several threads.


def test_branches_are_made_while_other_threads_run_tasks(nursery: Nursery, root: Zygote) -> None:
    root.wait_ready()

    def work(number: int) -> list[Any]:
        server = root if number == 0 else start_branch(root)
        told = []
        for _ in range(10):
            task = nursery.submit(server, {})
            task.kill(grace=600) if number % 2 else None
            while (message := task.next_message(deadline())) is not None:
                told.append(message)
        if server is not root:
            server.close()
        return told

    with ThreadPoolExecutor(6) as threads:
        for told in threads.map(work, range(6)):
            assert told is not None

    assert nursery.run(root, {}).returncode == 0
