"""The executor: what ``concurrent.futures`` promises, and what it keeps up when processes die or hang."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import Executor, ProcessDied, TaskError, executor


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with Executor(2) as pool:
        yield pool


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail_until(folder: str, times: int, how: str) -> int:
    """Die, hang or raise as often as that, then return the number of the attempt."""
    attempt = len(os.listdir(folder))
    Path(folder, str(attempt)).touch()
    if attempt < times and how == "die":
        kill_itself()
    elif attempt < times and how == "hang":
        time.sleep(PATIENCE)
    elif attempt < times:
        raise ConnectionError(how)
    return attempt


def test_functions_arguments_and_results_of_any_kind_and_size_arrive(pool: Executor) -> None:
    captured = 3
    assert pool.submit(lambda x, *, y: x * y + captured, 2, y=5).result() == 13
    assert pool.submit(bytes.upper, b"ab" * 2**20).result() == b"AB" * 2**20  # more than a record takes
    assert list(pool.map(pow, range(20), range(20), chunksize=3)) == list(map(pow, range(20), range(20)))
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result()
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pool.submit(print, sys._getframe())


def test_a_closure_is_sent_as_it_is_when_it_is_submitted(pool: Executor) -> None:
    number = 0

    def read() -> int:
        return number

    found = []
    for number in range(3):  # noqa: B007  (read through the closure)
        found.append(pool.submit(read))
    assert [future.result() for future in found] == [0, 1, 2]


def test_a_process_that_dies_costs_its_call_and_no_other(pool: Executor) -> None:
    calls = [
        pool.submit(kill_itself if number % 5 == 0 else abs, *([] if number % 5 == 0 else [-number]))
        for number in range(20)
    ]
    for number, call in enumerate(calls):
        if number % 5 == 0:
            with pytest.raises(ProcessDied, match="died with signal SIGKILL") as raised:
                call.result(PATIENCE)
            assert isinstance(raised.value, BrokenProcessPool)  # what callers of ProcessPoolExecutor expect
        else:
            assert call.result(PATIENCE) == number
    with ProcessPoolExecutor(1) as theirs:
        theirs.submit(kill_itself).exception()
        with pytest.raises(BrokenProcessPool):
            theirs.submit(abs, 1)


def test_a_call_that_hangs_is_ended_and_shows_where(pool: Executor) -> None:
    call = pool.options(timeout=1.5).submit(time.sleep, PATIENCE)
    with pytest.raises(TaskError, match=r"not finished within 1\.5 s") as raised:
        call.result(PATIENCE)
    assert raised.value.record.failure is not None
    assert "in call" in raised.value.record.failure.traceback
    assert pool.submit(abs, -1).result() == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["die", "hang", "raise"])
def test_a_call_is_repeated_as_often_as_it_may(
    pool: Executor, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "BACK_OFF", 0.01)
    patient = pool.options(retries=2, retry_on=(ConnectionError,), timeout=3.0 if how == "hang" else None)
    folders = [tmp_path / name for name in ("two", "three")]
    for folder in folders:
        folder.mkdir()
    fine, fails = (patient.submit(fail_until, str(folder), n, how) for n, folder in zip((2, 3), folders, strict=True))
    assert fine.result(PATIENCE) == 2
    assert fine.attempts == fails.attempts == 3 or fails.exception(PATIENCE) is not None
    assert type(fails.exception(PATIENCE)) is {"die": ProcessDied, "hang": TaskError, "raise": ConnectionError}[how]


def test_variables_and_memory_are_those_of_a_call(pool: Executor) -> None:
    def look() -> str | None:
        return os.environ.get("OF_A_CALL")

    assert pool.options(env={"OF_A_CALL": "1"}).submit(look).result() == "1"
    assert {pool.submit(look).result() for _ in range(4)} == {None}
    with pytest.raises(MemoryError):
        pool.options(memory=2**24).submit(bytearray, 2**28).result()
    assert len(pool.options(memory=2**29).submit(bytearray, 2**26).result()) == 2**26
    assert len(pool.submit(bytes, 2**27).result()) == 2**27


def test_calls_are_futures_for_callbacks_and_coroutines(pool: Executor) -> None:
    seen: list[Any] = []
    calls = [pool.submit(abs, number) for number in range(5)]
    calls[0].add_done_callback(seen.append)
    assert {call.result() for call in as_completed(calls, PATIENCE)} == set(range(5))
    wait_until(lambda: seen == calls[:1], "the callback")

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(pool, abs, -number) for number in range(5)))

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_records_of_calls_are_not_kept() -> None:
    with Executor(1) as pool:
        list(pool.map(abs, range(50)))
        assert pool._pool._run.records == {}
        assert not pool._pool._run.nodes


@pytest.mark.slow
def test_an_initializer_runs_in_each_process_and_one_that_fails_breaks_the_executor() -> None:
    with Executor(2, os.chdir, ("/",)) as pool:
        assert pool.submit(os.getcwd).result() == "/"
    with Executor(1, divmod, (1, 0)) as pool:
        for _ in range(2):
            with pytest.raises(BrokenProcessPool, match="ZeroDivisionError"):
                pool.submit(abs, 1)


def test_what_was_submitted_is_done_at_the_end_of_the_program(tmp_path: Path) -> None:
    script = """
        import sys
        from pathlib import Path
        from pytest_aorta.runtime import Executor
        pool = Executor(1)
        for name in "abc":
            pool.submit(Path(sys.argv[1], name).touch)
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], check=True, timeout=PATIENCE)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


# CPython's own tests


def cpython_tests() -> Path | None:
    """The folder ``test`` of an installation of Python that has it whole: this one, or one beside it."""
    for folder in (Path(sys.base_prefix), *sorted(Path(sys.base_prefix).parent.glob("3.*"))):
        found = sorted(folder.glob("lib/python3.*/test/test_concurrent_futures.py"))
        if found:
            return found[0].parent
    return None


@pytest.mark.slow
@pytest.mark.skipif(
    cpython_tests() is None, reason="no installation of Python here has its tests of executors in one file"
)
def test_the_tests_of_executors_of_cpython_pass(tmp_path: Path) -> None:
    folder = cpython_tests()
    assert folder is not None
    (tmp_path / "test").symlink_to(folder)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parent)])}
    command = [sys.executable, "-W", "ignore", "-m", "cpython_executor_tests"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "OK (skipped=11)" in done.stderr
