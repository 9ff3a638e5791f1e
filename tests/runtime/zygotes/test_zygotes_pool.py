"""Warm zygotes: one per specification, at most so many of them."""

from __future__ import annotations

import os
import signal

import pytest
from support.nursery import ECHO, Nursery, imports, touched
from support.processes import wait_until

from pytest_aorta.runtime.zygote import ZygoteError
from pytest_aorta.runtime.zygote_pool import ZygotePool

# One user after the other.


def test_equal_specifications_share_a_zygote(nursery: Nursery, pool: ZygotePool) -> None:
    spec = nursery.spec(ECHO)

    first = touched(pool, spec)
    second = pool.acquire(spec)

    assert first is second
    assert nursery.run(second).told == nursery.run(second).told == [first.info["pid"]]
    assert imports(nursery) == 1


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


# Several at once.
