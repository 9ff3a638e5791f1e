"""Jobs on threads, sessions, and a worker that many threads use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import levels_tasks
import pytest
from levels_stage import no_torch as no_torch
from levels_stage import run_sub
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import Job, Outcome, Preparation, Slot, TaskArgs, TaskRecord, Worker


@pytest.fixture
def service(tmp_path: Path) -> Path:
    return tmp_path / "service"


@pytest.fixture
def worker(service: Path) -> Iterator[Worker]:
    with Worker(
        3,
        slots=[Slot(0), Slot(1)],
        num_sub_workers=1,
        service="levels_tasks:Service",
        service_argument=str(service),
        grace=0.1,
    ) as worker:
        yield worker


def do(payload: Any, **more: Any) -> Job:
    return Job("levels_tasks:job", payload, **more)


def test_a_job_runs_on_a_slot_and_gives_what_its_function_returns(worker: Worker) -> None:
    records = [worker.session.submit_job(do("slot")).wait(PATIENCE) for _ in range(3)]

    assert all(record.ok for record in records)
    assert {record.payload for record in records} <= {0, 1}
    assert {record.worker for record in records} <= {"slot 0", "slot 1"}
    assert worker.session.submit_job(do("service")).wait(PATIENCE).payload == "service"


def test_a_job_that_raises_is_a_failure(worker: Worker) -> None:
    record = worker.session.submit_job(do("boom")).wait(PATIENCE)

    assert record.outcome is Outcome.TASK_FAILURE
    assert record.failure is not None
    assert (record.failure.type, record.failure.message) == ("ValueError", "ValueError: job")
    assert "levels_tasks.py" in record.failure.traceback


def test_a_job_tells_of_what_happens_in_it(worker: Worker) -> None:
    seen: list[Any] = []
    job = do("events", on_start=seen.append, on_event=seen.append)

    assert worker.session.submit_job(job).wait(PATIENCE).payload == "emitted"
    assert seen == ["slot 0", {"number": 1}, {"number": 2}]


def test_a_preparation_comes_first_and_only_once(worker: Worker) -> None:
    good, bad = Preparation("good", "levels_tasks:job", "x"), Preparation("bad", "levels_tasks:job", "boom")

    assert all(ref.wait(PATIENCE).ok for ref in [worker.session.submit_job(do(n, preparation=good)) for n in range(3)])
    for ref in [worker.session.submit_job(do("never", preparation=bad)) for _ in range(3)]:
        record = ref.wait(PATIENCE)
        assert record.outcome is Outcome.SKIPPED
        assert record.failure is not None
        assert record.failure.message == "ValueError: job"
    assert worker.session.submit_job(do("fine")).wait(PATIENCE).ok


def test_a_job_that_is_not_wanted_any_more_is_told(worker: Worker) -> None:
    ref = worker.session.submit_job(do("until cancelled"))
    wait_until(lambda: ref.state.value == "running", "its start")
    ref.cancel("changed my mind")

    record = ref.wait(PATIENCE)
    assert record.outcome is Outcome.CANCELLED
    assert record.failure is not None
    assert record.failure.message == "changed my mind"


def test_a_job_has_a_deadline_like_any_task(worker: Worker) -> None:
    assert worker.session.submit_job(do("until cancelled"), timeout=0.05).wait(PATIENCE).outcome is Outcome.TIMEOUT


@pytest.mark.statement(41)
def test_close_tells_the_jobs_of_the_session_and_closes_the_service_once(service: Path) -> None:
    records: list[TaskRecord] = []
    with Worker(3, slots=1, service="levels_tasks:Service", service_argument=str(service)) as worker:
        for payload in ("until cancelled", "waits for the slot"):
            worker.session.submit_job(do(payload)).when_settled(records.append)

    assert [record.outcome for record in records] == [Outcome.CANCELLED] * 2
    assert service.read_text() == "closed\n"


def test_a_session_and_runs_do_not_hold_each_other_up(worker: Worker) -> None:
    ref = worker.session.submit_job(do("until cancelled"))
    nothing = worker.register(levels_tasks.nothing)
    assert run_sub(worker, nothing).ok
    assert ref.record is None
    ref.cancel()
    ref.wait(PATIENCE)


def test_a_job_may_use_a_worker_of_its_own(worker: Worker) -> None:
    job = Job("levels_tasks:job_with_a_worker", None)
    refs = [worker.session.submit_job(job) for _ in range(2)]

    assert [ref.wait(PATIENCE).payload for ref in refs] == [["within"], ["within"]]


def test_many_threads_use_one_worker(worker: Worker) -> None:
    echo = worker.register(levels_tasks.echo)

    def use(number: int) -> list[Any]:
        found = []
        for step in range(5):
            args = TaskArgs().add_scalar(number).add_scalar(step)
            worker.run(lambda orch, _, config, args=args: found.append(orch.submit_sub(echo, args)))
        return [ref.wait(PATIENCE).payload["scalars"] for ref in found]

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(use, range(6)))

    assert found == [[[number, step] for step in range(5)] for number in range(6)]


def test_many_threads_wait_for_one_run(worker: Worker) -> None:
    boom = worker.register(levels_tasks.boom)
    handle = worker.submit(lambda orch, args, config: orch.submit_sub(boom, TaskArgs().add_scalar("shared")))

    with ThreadPoolExecutor(4) as threads:
        errors = [waiting.exception(PATIENCE) for waiting in [threads.submit(handle.wait) for _ in range(4)]]

    assert [str(error) for error in errors] == ["sub_worker 0: ValueError: shared"] * 4
    assert len({id(error) for error in errors}) == 4


def test_a_thread_that_waits_and_one_that_submits_do_not_hold_each_other_up(worker: Worker, tmp_path: Path) -> None:
    from levels_stage import Gates

    gates = Gates(tmp_path)
    gate = worker.register(levels_tasks.gate)
    first = worker.submit(lambda orch, args, config: orch.submit_sub(gate, gates.at("a")))
    waiter = threading.Thread(target=first.wait)
    waiter.start()
    second = worker.submit(lambda orch, args, config: orch.submit_sub(gate, gates.at("b")))
    gates.open()
    second.wait(PATIENCE)
    waiter.join(PATIENCE)

    assert first.done
