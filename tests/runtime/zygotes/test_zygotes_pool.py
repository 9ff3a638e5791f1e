"""Warm zygotes that several threads use: one per specification, at most so many of them."""

from __future__ import annotations

import os
import random
import re
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from support.nursery import ECHO, Nursery, imports, touched
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime.zygote import ZygoteError, ZygoteSpec
from pytest_aorta.runtime.zygote_pool import ZygotePool


def test_the_unused_one_that_was_used_longest_ago_is_closed_beyond_the_bound(
    nursery: Nursery, pool: ZygotePool
) -> None:
    a, b, c = (nursery.spec(ECHO) for _ in range(3))
    first, second = touched(pool, a), touched(pool, b)
    assert pool.acquire(a) is first
    pool.release(first)

    third = pool.acquire(c)

    assert [zygote.alive() for zygote in (first, second, third)] == [True, False, True]
    fourth = touched(pool, b)
    assert fourth is not second
    assert [zygote.alive() for zygote in (first, third, fourth)] == [False, True, True]
    assert nursery.run(third).returncode == 0
    assert imports(nursery) == 4


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


# Several threads at once.


def users(pool: ZygotePool, spec: ZygoteSpec) -> int:
    entry = pool._entries.get(spec.key)
    return 0 if entry is None else entry.users


def errors_of(futures: list[Future[Any]]) -> list[str]:
    errors = [future.exception(6 * PATIENCE) for future in futures]
    assert all(isinstance(error, ZygoteError) for error in errors), errors
    return [str(error) for error in errors]


@pytest.mark.parametrize("end", ["", "raise ValueError('no')"])
def test_threads_that_need_the_same_zygote_wait_for_one_start(
    nursery: Nursery, pool: ZygotePool, threads: ThreadPoolExecutor, end: str
) -> None:
    os.mkfifo(nursery.path / "gate")
    spec = nursery.spec(f"open('imports', 'a').write('x')\nopen('gate').read()\n{end}")
    futures = [threads.submit(pool.acquire, spec) for _ in range(4)]
    wait_until(lambda: users(pool, spec) == 4, "all of them wait")

    (nursery.path / "gate").write_text("")

    if end:
        assert errors_of(futures) == ["ValueError: no"] * 4
    else:
        assert len({future.result(6 * PATIENCE) for future in futures}) == 1
    assert imports(nursery) == 1


def test_many_threads_at_once(nursery: Nursery, pool: ZygotePool, threads: ThreadPoolExecutor) -> None:
    source = """
        import os
        def prepare(argument):
            return {"argument": argument}
        def run(payload, send):
            send({"value": payload})
    """
    specs = [nursery.spec(source, argument=number) for number in range(3)]

    def work(thread: int) -> None:
        choose = random.Random(thread)
        for number in range(12):
            which = choose.randrange(3)
            server = pool.acquire(specs[which])
            assert server.info["argument"] == which
            done = nursery.run(server, [thread, number])
            assert (done.told, done.returncode) == ([[thread, number]], 0)
            pool.release(server)

    for future in [threads.submit(work, thread) for thread in range(8)]:
        future.result(6 * PATIENCE)
    touched(pool, nursery.spec(source))
    assert len(pool._entries) == 2


def test_closing_while_a_zygote_starts_is_an_error_of_all_that_wait(
    nursery: Nursery, pool: ZygotePool, threads: ThreadPoolExecutor
) -> None:
    spec = nursery.spec(
        """
        import subprocess, time
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        open("begun", "w").close()
        time.sleep(600)
        """
    )
    futures = [threads.submit(pool.acquire, spec) for _ in range(3)]
    wait_until((nursery.path / "begun").exists, "the import")
    wait_until(lambda: users(pool, spec) == 3, "all of them wait")

    pool.close()

    assert all(re.search("closed|cancelled", error) for error in errors_of(futures))
    assert nursery.alive() == []
