"""Warm zygotes: one per specification, at most so many of them, lent to one user at a time."""

from __future__ import annotations

import os
import signal

import pytest
from support.nursery import ECHO, Nursery, imports, message_of, touched
from support.processes import wait_until

from pytest_aorta.runtime.zygote import Branch, ZygoteError, ZygotePool

# One user after the other.


def test_equal_specifications_share_a_zygote(nursery: Nursery, pool: ZygotePool) -> None:
    spec = nursery.spec(ECHO)

    first = touched(pool, spec)
    second = pool.acquire(spec)

    assert first is second
    assert nursery.run(second).told == nursery.run(second).told == [first.info["pid"]]
    assert imports(nursery) == 1


def test_specifications_that_differ_in_one_variable_do_not(nursery: Nursery, pool: ZygotePool) -> None:
    one, two = (nursery.spec(ECHO, environ={"AORTA_TEST_X": value}) for value in "12")

    assert touched(pool, one).info["pid"] != touched(pool, two).info["pid"]


def test_beyond_the_bound_the_one_that_was_used_longest_ago_is_closed(nursery: Nursery, pool: ZygotePool) -> None:
    a, b, c = (nursery.spec(ECHO) for _ in range(3))
    first, second = touched(pool, a), touched(pool, b)
    touched(pool, a)

    third = touched(pool, c)

    assert [zygote.alive() for zygote in (first, second, third)] == [True, False, True]
    assert touched(pool, a) is first
    assert touched(pool, b) is not second


def test_one_that_is_in_use_is_not_closed(nursery: Nursery, pool: ZygotePool) -> None:
    used, idle = pool.acquire(nursery.spec(ECHO)), touched(pool, nursery.spec(ECHO))

    third = touched(pool, nursery.spec(ECHO))

    assert [zygote.alive() for zygote in (used, idle, third)] == [True, False, True]
    assert nursery.run(used).returncode == 0


def test_when_all_are_in_use_the_bound_gives_way(nursery: Nursery, pool: ZygotePool) -> None:
    servers = [pool.acquire(nursery.spec(ECHO)) for _ in range(3)]

    assert all(server.alive() for server in servers)
    for server in servers:
        pool.release(server)
    touched(pool, nursery.spec(ECHO))
    assert [server.alive() for server in servers] == [False, False, True]


def test_one_that_has_died_is_replaced(nursery: Nursery, pool: ZygotePool) -> None:
    spec = nursery.spec(ECHO)
    first = touched(pool, spec)
    os.kill(first.info["pid"], signal.SIGKILL)
    wait_until(lambda: not first.alive(), "the end of the zygote")

    second = pool.acquire(spec)

    assert second is not first
    assert nursery.run(second).told == [second.info["pid"]]


def test_one_that_cannot_be_prepared_is_an_error_each_time_and_takes_no_place(
    nursery: Nursery, pool: ZygotePool
) -> None:
    kept = [touched(pool, nursery.spec(ECHO))]
    broken = nursery.spec("raise ValueError('no')")

    for _ in range(3):
        with pytest.raises(ZygoteError, match="ValueError: no"):
            pool.acquire(broken)

    kept.append(touched(pool, nursery.spec(ECHO)))
    assert all(zygote.alive() for zygote in kept)


def test_one_that_must_not_be_forked_is_asked_only_once(nursery: Nursery, pool: ZygotePool) -> None:
    spec = nursery.spec(
        """
        import threading
        open("imports", "a").write("x")
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        """
    )

    first = pool.acquire(spec)
    wait_until(lambda: not first.alive(), "the end of what cannot be forked")

    assert pool.acquire(spec) is first
    assert first.against_forking
    assert imports(nursery) == 1
    pool.release(first)
    assert touched(pool, spec) is first
    pool.discard(first)
    assert touched(pool, spec) is not first


def test_a_fresh_one_is_everybody_s_own_and_gone_after_its_task(nursery: Nursery, pool: ZygotePool) -> None:
    spec = nursery.spec(ECHO, fresh=True)

    first, second = pool.acquire(spec), pool.acquire(spec)

    assert first is not second
    pids = [nursery.run(server).told[0] for server in (first, second)]
    assert len(set(pids)) == 2
    for server in (first, second):
        pool.release(server)
        assert not server.alive()


def test_a_task_that_still_runs_is_ended_when_its_server_is_released(nursery: Nursery, pool: ZygotePool) -> None:
    os.mkfifo(nursery.path / "fifo")
    spec = nursery.spec(ECHO)
    server = pool.acquire(spec)
    task = nursery.submit(server, str(nursery.path / "fifo"))
    message_of(task)

    pool.release(server)

    assert task.ended is not None
    assert task.ended["returncode"] == -signal.SIGKILL
    again = pool.acquire(spec)
    assert again is server
    task.kill(grace=0)  # of another task by now
    assert nursery.run(again).returncode == 0


def test_what_was_not_acquired_cannot_be_released(nursery: Nursery, pool: ZygotePool) -> None:
    server = touched(pool, nursery.spec(ECHO))
    pool.release(server)

    assert pool.acquire(server.spec) is server
    assert pool.acquire(server.spec) is not server


# Several at once.


def test_when_all_are_in_use_a_branch_is_made_and_kept(nursery: Nursery, pool: ZygotePool) -> None:
    spec = nursery.spec(ECHO)

    servers = [pool.acquire(spec) for _ in range(3)]

    assert [isinstance(server, Branch) for server in servers] == [False, True, True]
    assert len({nursery.run(server).told[0] for server in servers}) == 3
    assert imports(nursery) == 1
    for server in servers:
        pool.release(server)
    assert {pool.acquire(spec) for _ in range(3)} == set(servers)


def test_a_zygote_and_its_branches_count_as_one_and_go_together(nursery: Nursery, pool: ZygotePool) -> None:
    spec, other = nursery.spec(ECHO), nursery.spec(ECHO)
    servers = [pool.acquire(spec) for _ in range(3)]
    kept = touched(pool, other)
    assert kept.alive()
    for server in servers[:2]:
        pool.release(server)

    touched(pool, nursery.spec(ECHO))
    assert [server.alive() for server in servers] == [True, True, True]
    pool.release(servers[2])
    touched(pool, nursery.spec(ECHO))

    assert [server.alive() for server in servers] == [False, False, False]


def test_a_branch_that_has_died_is_replaced(nursery: Nursery, pool: ZygotePool) -> None:
    spec = nursery.spec(ECHO)
    root, branch = pool.acquire(spec), pool.acquire(spec)
    assert isinstance(branch, Branch)
    assert branch.pid is not None
    pool.release(branch)
    os.kill(branch.pid, signal.SIGKILL)
    wait_until(lambda: not branch.alive(), "the end of the branch")

    other = pool.acquire(spec)

    assert other is not branch
    assert nursery.run(other).returncode == nursery.run(root).returncode == 0


def test_branches_of_a_zygote_that_has_died_are_forgotten_with_it(nursery: Nursery, pool: ZygotePool) -> None:
    spec = nursery.spec(ECHO)
    old = [pool.acquire(spec) for _ in range(3)]
    pool.release(old[1])
    os.kill(old[0].info["pid"], signal.SIGKILL)
    wait_until(lambda: not old[0].alive(), "the end of the zygote")

    new = [pool.acquire(spec) for _ in range(2)]

    assert set(new).isdisjoint(old)
    assert all(nursery.run(server).returncode == 0 for server in new)
    for server in [*old, *new]:
        pool.release(server)
    assert set(new) == {pool.acquire(spec) for _ in range(2)}


def test_discarding_a_zygote_ends_its_branches(nursery: Nursery, pool: ZygotePool) -> None:
    spec = nursery.spec(ECHO)
    root, branch = pool.acquire(spec), pool.acquire(spec)
    pool.release(branch)

    pool.discard(root)

    assert nursery.alive() == []
    assert touched(pool, spec) is not root


def test_discarding_a_branch_ends_that_one_only(nursery: Nursery, pool: ZygotePool) -> None:
    spec = nursery.spec(ECHO)
    root, branch = pool.acquire(spec), pool.acquire(spec)

    pool.discard(branch)

    assert not branch.alive()
    assert nursery.run(root).returncode == 0
