"""A pool of zygotes that several threads use, and that is closed while they do."""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from support.nursery import ECHO, Nursery, finish, imports, touched
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime.zygote import ZygoteError, ZygoteSpec
from pytest_aorta.runtime.zygote_pool import ZygotePool


def all_of(futures: list[Future[Any]]) -> list[Any]:
    """Their results."""
    return [future.result(6 * PATIENCE) for future in futures]


def test_threads_that_need_the_same_zygote_wait_for_one_start(
    nursery: Nursery, pool: ZygotePool, threads: ThreadPoolExecutor
) -> None:
    os.mkfifo(nursery.path / "gate")
    spec = nursery.spec("open('gate').read()" + ECHO.replace("\n    ", "\n"))
    futures = [threads.submit(pool.acquire, spec) for _ in range(4)]
    wait_until(lambda: _users(pool, spec) == 4, "all of them wait")

    (nursery.path / "gate").write_text("")

    servers = all_of(futures)
    assert len(set(servers)) == 1
    assert imports(nursery) == 1


def _users(pool: ZygotePool, spec: ZygoteSpec) -> int:
    entry = pool._entries.get(spec.key)
    return 0 if entry is None else entry.users


def test_a_failed_start_is_told_to_all_that_waited(
    nursery: Nursery, pool: ZygotePool, threads: ThreadPoolExecutor
) -> None:
    os.mkfifo(nursery.path / "gate")
    spec = nursery.spec("open('imports', 'a').write('x')\nopen('gate').read()\nraise ValueError('no')")
    futures = [threads.submit(pool.acquire, spec) for _ in range(4)]
    wait_until(lambda: _users(pool, spec) == 4, "all of them wait")

    (nursery.path / "gate").write_text("")

    errors = [future.exception(6 * PATIENCE) for future in futures]
    assert [str(error) for error in errors] == ["ValueError: no"] * 4
    assert all(isinstance(error, ZygoteError) and error.phase == "import" for error in errors)
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

    def work(thread: int) -> int:
        choose = random.Random(thread)
        for number in range(12):
            which = choose.randrange(3)
            server = pool.acquire(specs[which])
            assert server.info["argument"] == which
            done = nursery.run(server, [thread, number])
            assert (done.told, done.returncode) == ([[thread, number]], 0)
            pool.release(server)
        return thread

    assert all_of([threads.submit(work, thread) for thread in range(8)]) == list(range(8))
    touched(pool, nursery.spec(source))
    assert len(pool._entries) == 2


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Started."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run).start()
    return future


def test_closing_while_tasks_run_is_an_error_of_the_tasks(nursery: Nursery, pool: ZygotePool) -> None:
    os.mkfifo(nursery.path / "fifo")
    spec = nursery.spec(ECHO)
    begun = threading.Semaphore(0)

    def work() -> None:
        server = pool.acquire(spec)
        try:
            task = nursery.submit(server, str(nursery.path / "fifo"))
            while (message := task.next_message(None)) is not None and "value" not in message:
                pass
            begun.release()
            finish(task)
        finally:
            pool.release(server)

    futures = [in_thread(work) for _ in range(3)]
    for _ in futures:
        assert begun.acquire(timeout=6 * PATIENCE)

    pool.close()

    errors = [future.exception(6 * PATIENCE) for future in futures]
    assert all(isinstance(error, ZygoteError) and "was closed" in str(error) for error in errors), errors
    assert nursery.alive() == []


def test_closing_while_a_zygote_starts_is_an_error_of_all_that_wait(nursery: Nursery, pool: ZygotePool) -> None:
    spec = nursery.spec("import time\nopen('begun', 'w').close()\ntime.sleep(600)")
    futures = [in_thread(lambda: pool.acquire(spec)) for _ in range(3)]
    wait_until((nursery.path / "begun").exists, "the import")
    wait_until(lambda: _users(pool, spec) == 3, "all of them wait")

    pool.close()

    errors = [future.exception(6 * PATIENCE) for future in futures]
    assert all(isinstance(error, ZygoteError) and re.search("closed|cancelled", str(error)) for error in errors), errors
    assert nursery.alive() == []
