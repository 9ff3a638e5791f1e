"""Branches that are prepared further than their zygote: what goes wrong there leaves the zygote as it was."""

from __future__ import annotations

import os
import signal

import pytest
from support.nursery import Nursery, finish, message_of
from support.processes import is_gone, wait_until

from pytest_aorta.runtime.zygote import ZygoteError, ZygoteUnwanted
from pytest_aorta.runtime.zygote_pool import Branch, ExtensionFailed

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
        if payload == "stays":
            time.sleep(1000)
"""


def test_what_a_branch_is_prepared_with_is_there_for_its_tasks_only(nursery: Nursery) -> None:
    root = nursery.start_from(nursery.extensible(SOURCE))
    root.wait_ready()
    first, second = Branch(root, "one"), Branch(root, "two")

    told = [nursery.run(server).told for server in (root, first, second, first)]

    assert told == [[[]], [["one"]], [["two"]], [["one"]]]
    assert first.alive()


def test_a_branch_that_is_killed_takes_its_task_along_and_no_other(nursery: Nursery) -> None:
    root = nursery.start_from(nursery.extensible(SOURCE))
    root.wait_ready()
    branch = Branch(root, "one")
    lost, other = nursery.submit(branch, "stays"), nursery.submit(root, "stays")
    assert (message_of(lost), message_of(other)) == (["one"], [])

    os.kill(branch.pid, signal.SIGKILL)

    with pytest.raises(ZygoteError, match="branch died with signal SIGKILL"):
        finish(lost)
    assert not branch.alive()
    assert not is_gone(other.pid)
    other.kill(0.0)
    finish(other)
    assert nursery.run(root).told == [[]]


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
    root = nursery.start_from(nursery.extensible(SOURCE))
    root.wait_ready()
    with pytest.raises(ExtensionFailed, match=said) as caught:
        Branch(root, how, 0.3 if how == "hangs" else 60)

    assert dict(caught.value.refused) == ({"module": "refuses"} if how == "refuses" else {})
    assert nursery.run(root).told == [[]]
    wait_until(lambda: len(nursery.alive()) == 1)  # the zygote


def test_a_branch_that_is_not_wanted_any_more_is_ended_while_it_is_prepared(nursery: Nursery) -> None:
    root = nursery.start_from(nursery.extensible(SOURCE))
    root.wait_ready()
    answers = iter([True, True, False])

    with pytest.raises(ZygoteUnwanted):
        Branch(root, "hangs", wanted=lambda: next(answers))
    assert nursery.run(root).told == [[]]
