"""Branches that are prepared further than their zygote: what goes wrong there leaves the zygote as it was."""

from __future__ import annotations

import pytest
from support.nursery import Nursery, pool_of
from support.processes import wait_until

from pytest_aorta.runtime.zygote import Branch, ExtensionFailed, ZygoteUnwanted, start_branch

SOURCE = """
    import os
    import signal
    import subprocess
    import threading
    import time

    added = []

    def extend(extension):
        if extension in globals():
            globals()[extension]()
        added.append(extension)
        return {"module": extension} if extension == "refuses" else {}

    def raises():
        raise ValueError("not today")

    def crashes():
        os.kill(os.getpid(), signal.SIGSEGV)

    def hangs():
        time.sleep(1000)

    def starts_a_thread():
        threading.Thread(target=time.sleep, args=(1000,), name="sleeper", daemon=True).start()

    def starts_a_process():
        subprocess.Popen(["sleep", "1000"], start_new_session=True)

    def spoils_forks():
        os.register_at_fork(after_in_child=lambda: os._exit(9))

    def run(payload, send):
        send({"value": added})
"""


def test_what_a_branch_is_prepared_with_is_there_for_its_tasks_only(nursery: Nursery) -> None:
    with pool_of(1) as pool:
        spec = nursery.extensible(SOURCE)
        root = pool.acquire(spec)
        first, second = pool.acquire(spec, extension="one"), pool.acquire(spec, extension="two")

        assert [nursery.run(server).told for server in (root, first, second, first)] == [
            *([[]], [["one"]], [["two"]], [["one"]]),
        ]


def test_an_unused_branch_serves_the_next_equal_request(nursery: Nursery) -> None:
    with pool_of(1) as pool:
        spec = nursery.extensible(SOURCE)
        first = pool.acquire(spec, extension="one")
        pool.release(first)

        assert pool.acquire(spec, extension="two") is not first
        assert pool.acquire(spec, extension="one") is first


FAILURES = {
    "raises": "ValueError: not today",
    "crashes": "died with signal SIGSEGV",
    "starts_a_thread": "started Python threads: sleeper",
    "starts_a_process": "started sleep",
    "spoils_forks": "a forked process ends with status 9",
    "refuses": "refused",
    "hangs": "not done after 0.3 s",
}


@pytest.mark.parametrize(("how", "said"), FAILURES.items(), ids=FAILURES)
def test_a_failure_is_told_and_the_zygote_goes_on(nursery: Nursery, how: str, said: str) -> None:
    with pool_of(1) as pool:
        spec = nursery.extensible(SOURCE)
        with pytest.raises(ExtensionFailed, match=said) as caught:
            pool.acquire(spec, extension=how, extension_limit=0.3 if how == "hangs" else 60)

        assert dict(caught.value.refused) == ({"module": "refuses"} if how == "refuses" else {})
        server = pool.acquire(spec)
        assert nursery.run(server).told == [[]]
        wait_until(lambda: len(nursery.alive()) == 2)  # the zygote and its child that stands by


def test_a_branch_that_is_not_wanted_any_more_is_ended_while_it_is_prepared(nursery: Nursery) -> None:
    zygote = nursery.start_from(nursery.extensible(SOURCE))
    waiting = start_branch(zygote, "hangs")
    assert isinstance(waiting, Branch)
    waiting.hang_up()

    with pytest.raises(ZygoteUnwanted):
        waiting.wait_extended()
    assert nursery.run(zygote).told == [[]]
