"""Which task goes where, and when: on doubles, where every step can be seen, and on processes; groups of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import levels_tasks
import pytest
from levels_stage import Gates, Host, failure_of, run_next, run_one, scalars
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from levels_stage import own_leases as own_leases
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import CallableHandle, Orchestrator, Outcome, TaskFailure, TaskRef, Worker
from pytest_aorta.runtime.callables import Callables, Definition
from pytest_aorta.runtime.dispatcher import Dispatch, Dispatcher, GraphRun, TaskKind
from pytest_aorta.runtime.graph import State
from pytest_aorta.runtime.records import SUCCEEDED, Completion
from pytest_aorta.runtime.tensors import Heap


class FakeEndpoint:
    """Takes tasks, and does nothing with them."""

    def __init__(self, kind: TaskKind, identity: int, started: list[str]) -> None:
        self.kind = kind
        self.id = identity
        self.name = f"{kind.name.split('_')[0].lower()} {identity}"
        self.busy = 0
        self.gone: TaskFailure | None = None
        self.ready = True
        self.running: list[Dispatch] = []
        self.stopped: list[str] = []
        self.refuses: Exception | None = None
        self._started = started

    def start(self, dispatch: Dispatch) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.running.append(dispatch)
        self._started.append(f"{dispatch.node.label} on {self.name}")

    def stop(self, dispatch: Dispatch, why: str, grace: float) -> None:
        self.stopped.append(f"{dispatch.node.label}: {why}")


class DispatcherBench:
    """A dispatcher with ``nexts`` fake workers of the next level and ``subs`` fake SUB workers, and one open run."""

    def __init__(self, nexts: int = 0, subs: int = 0, grace: float = 60.0) -> None:
        self.started: list[str] = []
        self.dispatcher = Dispatcher("bench", grace)
        self.next = [FakeEndpoint(TaskKind.NEXT_LEVEL, number, self.started) for number in range(nexts)]
        self.sub = [FakeEndpoint(TaskKind.SUB, number, self.started) for number in range(subs)]
        for endpoint in (*self.next, *self.sub):
            self.dispatcher.placement.add(endpoint)
        self.run = self.dispatcher.open_run(GraphRun(ring_size=2**17))
        self.callables = Callables("bench")
        self.orch = Orchestrator(self.dispatcher, self.run, cast(Heap, None), self.callables)

    def handle(self, name: str, eligible: frozenset[int] | None = None) -> CallableHandle:
        return self.callables.add(Definition(name, name.encode()), eligible)

    def submit(
        self, name: str, worker: int | None = None, eligible: frozenset[int] | None = None, **more: Any
    ) -> TaskRef:
        """A task for one worker of the next level, for some, or for any."""
        return self.orch.submit_next_level(self.handle(name, eligible), worker=worker, **more)

    def group(self, name: str, workers: Sequence[int], **more: Any) -> TaskRef:
        """A group on these workers."""
        return self.orch.submit_next_level_group(self.handle(name), [None] * len(workers), workers=workers, **more)

    def submit_sub(self, name: str, size: int | None = None, **more: Any) -> TaskRef:
        """A SUB task, or a group of them."""
        if size is None:
            return self.orch.submit_sub(self.handle(name), **more)
        return self.orch.submit_sub_group(self.handle(name), [None] * size, **more)

    def end(self, endpoint: FakeEndpoint, outcome: Outcome = Outcome.SUCCESS, why: str = "") -> None:
        """The task that runs there has ended."""
        succeeded = outcome is Outcome.SUCCESS
        completion = SUCCEEDED if succeeded else Completion(outcome, None, TaskFailure("Broken", why))
        self.dispatcher.ended(endpoint.running.pop(0), completion)

    def lose(self, endpoint: FakeEndpoint) -> None:
        """It is out of service."""
        with self.dispatcher.turn:
            endpoint.gone = TaskFailure("ProcessDied", "out of service")

    def news(self) -> list[str]:
        """What has been started since it was last asked."""
        news, self.started[:] = self.started[:], []
        return news


MakeBench = Callable[..., DispatcherBench]


@pytest.fixture
def bench_of(request: pytest.FixtureRequest) -> MakeBench:
    def make(**sizes: Any) -> DispatcherBench:
        bench = DispatcherBench(**sizes)
        request.addfinalizer(bench.dispatcher.loop.close)
        return bench

    return make


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Worker(3, device_ids=[0, 1], num_sub_workers=2, grace=0.2) as worker:
        yield Host(worker)


@pytest.mark.statement(25)
def test_a_blocked_group_starts_as_a_whole_and_its_workers_are_kept_for_it(bench_of: MakeBench) -> None:
    bench = bench_of(nexts=3)
    bench.submit("a", worker=0)
    bench.group("group", [0, 1])
    bench.group("second", [0, 2])  # only the first one keeps workers
    for worker in (0, 1, 2):
        bench.submit(f"single {worker}", worker=worker)
    bench.submit("anywhere")
    assert bench.news() == ["a on next 0", "single 2 on next 2"]

    bench.end(bench.next[2])
    assert bench.news() == ["anywhere on next 2"]
    bench.end(bench.next[0])
    assert bench.news() == ["group on next 0", "group on next 1"]
    bench.end(bench.next[1])
    assert bench.news() == ["single 1 on next 1"]
    bench.end(bench.next[0])
    bench.end(bench.next[2])
    assert bench.news() == ["second on next 0", "second on next 2"]


@pytest.mark.statement(26)
def test_members_of_a_group_run_where_they_were_sent(host: Host) -> None:
    record = run_one(
        lambda orch: orch.submit_next_level_group(host.echo, [scalars("x"), scalars("y")], workers=[1, 0]), host.worker
    )

    assert [(member.worker, member.payload["scalars"]) for member in record.members] == [
        ("slot 1", ["x"]),
        ("slot 0", ["y"]),
    ]
    assert record.ok
    assert record.worker is None


@pytest.mark.statement(27)
def test_ids_of_workers_are_checked_before_there_is_a_task(host: Host) -> None:
    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        wrong: list[Any] = [2, -1, True, "0", 0.0, None]
        for worker in wrong:
            kind: type[Exception] = ValueError if type(worker) is int else TypeError
            why = "is not the id of a worker of the next level; valid: 0, 1|the id of a worker is an int, not "
            with pytest.raises(kind, match=why):
                orch.submit_next_level_group(host.nothing, [None, None], workers=[0, worker])
            if worker is not None:
                with pytest.raises(kind, match=why):
                    orch.submit_next_level(host.nothing, worker=worker)
        for workers, why in (
            ([1, 1], "a worker is named twice"),
            ([0], "2 members, but 1 workers"),
        ):
            with pytest.raises(ValueError, match=why):
                orch.submit_next_level_group(host.nothing, [None, None], workers=workers)
        with pytest.raises(ValueError, match="at least one member"):
            orch.submit_next_level_group(host.nothing, [], workers=[])
        with pytest.raises(ValueError, match="3 SUB workers needed at a time, but there are 2"):
            orch.submit_sub_group(host.nothing, [None] * 3)
        with pytest.raises(ValueError, match=r"echo is registered for workers \[0\], not for 1"):
            orch.submit_next_level(only_0, worker=1)

    only_0 = host.worker.register(levels_tasks.echo, workers=[0])
    handle = host.worker.submit(build)
    handle.wait()
    assert handle.records == []


@pytest.mark.statement(28)
def test_sub_processes_go_on_while_all_slots_are_busy(host: Host, gates: Gates) -> None:
    subs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        for name in ("a", "b", "c"):
            orch.submit_next_level(host.gate, gates.at(name))
        subs.extend(orch.submit_sub(host.echo, scalars(number)) for number in range(5))

    handle = host.worker.submit(build)
    assert [ref.wait(PATIENCE).payload["scalars"] for ref in subs] == [[0], [1], [2], [3], [4]]
    assert not handle.done
    gates.open()
    handle.wait()


@pytest.mark.statement(29)
def test_a_released_consumer_uses_its_own_queue_once(bench_of: MakeBench) -> None:
    bench = bench_of(nexts=2)
    first, second = bench.submit("first", worker=0), bench.submit("second", worker=1)
    consumer = bench.submit("consumer", worker=1, after=[first, second, first])
    bench.submit("later", worker=1)
    assert bench.news() == ["first on next 0", "second on next 1"]

    bench.end(bench.next[0])
    assert consumer.state.value == "pending"
    assert bench.news() == []
    bench.end(bench.next[1])
    assert consumer.state.value == "ready"  # what was ready before it comes first
    assert bench.news() == ["later on next 1"]
    bench.end(bench.next[1])
    assert bench.news() == ["consumer on next 1"]
    bench.end(bench.next[1])
    assert bench.news() == []


def test_a_sub_group_waits_for_enough_workers_and_is_not_overtaken(bench_of: MakeBench) -> None:
    bench = bench_of(subs=3)
    bench.submit_sub("a")
    bench.submit_sub("group", size=3)
    bench.submit_sub("b")
    assert bench.news() == ["a on sub 0"]

    bench.end(bench.sub[0])
    assert bench.news() == ["group on sub 0", "group on sub 1", "group on sub 2"]
    for endpoint in bench.sub:
        bench.end(endpoint)
    assert bench.news() == ["b on sub 0"]


def test_a_cancelled_task_is_passed_over(bench_of: MakeBench) -> None:
    bench = bench_of(nexts=1)
    bench.submit("a", worker=0)
    unwanted = bench.submit("unwanted", worker=0)
    bench.submit("b", worker=0)
    unwanted.cancel()
    bench.end(bench.next[0])

    assert bench.news() == ["a on next 0", "b on next 0"]
    assert unwanted.wait(0).outcome is Outcome.CANCELLED


def test_what_no_worker_will_ever_take_fails_and_the_rest_goes_on(bench_of: MakeBench) -> None:
    bench = bench_of(nexts=2, subs=2)
    for endpoint in (*bench.next, *bench.sub):
        endpoint.busy = 1
    lost = [bench.submit("for 0", worker=0), bench.group("group", [0, 1]), bench.submit_sub("pair", size=2)]
    kept = [bench.submit("for 1", worker=1), bench.submit("anywhere"), bench.submit_sub("single")]

    bench.lose(bench.next[0])
    bench.lose(bench.sub[1])

    for ref in lost:
        outcome, _, why = failure_of(ref.wait(0))
        assert outcome is Outcome.ENDPOINT_FAILURE
        assert why.endswith(": out of service")
    assert [ref.state for ref in kept] == [State.READY] * 3

    bench.lose(bench.next[1])
    bench.lose(bench.sub[0])
    assert [ref.wait(0).outcome for ref in kept] == [Outcome.ENDPOINT_FAILURE] * 3


def test_a_callable_for_some_workers_runs_on_these_only(bench_of: MakeBench) -> None:
    bench = bench_of(nexts=3)
    for name in ("picky", "picky", "easy", "easy", "easy"):
        bench.submit(name, eligible=frozenset({1}) if name == "picky" else None)
    assert bench.news() == ["picky on next 1", "easy on next 0", "easy on next 2"]

    bench.end(bench.next[0])
    assert bench.news() == ["easy on next 0"]
    bench.end(bench.next[1])
    assert bench.news() == ["picky on next 1"]
    late = bench.submit("picky", eligible=frozenset({1}))
    bench.lose(bench.next[1])
    assert late.wait(0).outcome is Outcome.ENDPOINT_FAILURE


@pytest.mark.statement(22)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_member_that_is_refused_fails_its_group_and_frees_it(bench_of: MakeBench, index: int) -> None:
    bench = bench_of(nexts=3)
    bench.next[index].refuses = LookupError("no such member")
    ref = bench.group("group", [0, 1, 2])

    for endpoint in bench.next[:index]:  # those before it run already
        assert ref.state is State.RUNNING
        bench.end(endpoint)
    record = ref.wait(0)

    assert failure_of(record) == (Outcome.TASK_FAILURE, "LookupError", f"next {index}: LookupError: no such member")
    outcomes = [Outcome.SUCCESS] * index + [Outcome.TASK_FAILURE] + [Outcome.SKIPPED] * (2 - index)
    assert [member.outcome for member in record.members] == outcomes
    assert [endpoint.busy for endpoint in bench.next] == [0, 0, 0]
    bench.next[index].refuses = None
    bench.group("next group", [0, 1, 2])
    assert bench.news()[-3:] == ["next group on next 0", "next group on next 1", "next group on next 2"]


@pytest.mark.statement(21)
def test_only_members_that_still_run_are_asked_to_end_and_only_once(bench_of: MakeBench) -> None:
    office = bench_of(nexts=3, grace=0.0)
    ref = office.group("group", [0, 1, 2])
    office.end(office.next[0])
    office.end(office.next[1], Outcome.TASK_FAILURE, "first")
    wait_until(lambda: office.next[2].stopped, "the order to end")
    ref.cancel("again")

    assert [len(endpoint.stopped) for endpoint in office.next] == [0, 0, 1]
    office.end(office.next[2])  # it was quicker than the order
    assert [member.outcome for member in ref.wait(0).members] == [
        Outcome.SUCCESS,
        Outcome.TASK_FAILURE,
        Outcome.SUCCESS,
    ]


# Groups: their members start together, and one that fails takes the others with it, after a grace


class Gang(Host):
    """A worker with two slots, whose groups have a member that goes wrong and one that does not."""

    def __init__(self, worker: Worker, gates: Gates) -> None:
        super().__init__(worker)
        self.gates = gates

    def start(self, wrong: str, other: str = "gate") -> TaskRef:
        """A group whose member on slot 0 does ``wrong``, and the one on slot 1 does ``other``."""
        refs: list[TaskRef] = []
        args = [self.gates.at(wrong).add_scalar(wrong), self.gates.at(other).add_scalar(other)]
        self.worker.submit(
            lambda orch, _, config: refs.append(orch.submit_next_level_group(self.either, args, workers=[0, 1]))
        )
        return refs[0]


@pytest.fixture
def strict(gates: Gates) -> Iterator[Gang]:
    """Peers have no time to speak of."""
    with Worker(3, device_ids=[4, 5], grace=0.05) as worker:
        yield Gang(worker, gates)


@pytest.mark.statement(21)
def test_a_group_stays_running_while_peers_of_a_failed_member_end(gates: Gates) -> None:
    with Worker(3, device_ids=[4, 5], grace=600) as worker:
        patient = Gang(worker, gates)
        ref = patient.start("gate_then_boom")
        gates.wait_until_began("gate_then_boom", "gate")
        gates.open("gate_then_boom")
        wait_until(lambda: ref._node.payload.failure is not None, "the failure of a member")

        assert ref.state is State.RUNNING
        assert ref.record is None
        gates.open("gate")
        record = ref.wait(PATIENCE)

    assert failure_of(record) == (Outcome.TASK_FAILURE, "ValueError", "slot 0: ValueError: gate_then_boom")
    assert [member.outcome for member in record.members] == [Outcome.TASK_FAILURE, Outcome.SUCCESS]
    assert record.members[1].payload == "gate"
    assert record.ended == max(member.ended or 0.0 for member in record.members)


@pytest.mark.statement(21)
@pytest.mark.statement(38)
@pytest.mark.parametrize(
    ("wrong", "other", "outcome", "message"),
    [
        ("gate_then_boom", "gate", Outcome.TASK_FAILURE, "ValueError: gate_then_boom"),
        ("gate_then_die", "gate_against_sigterm", Outcome.ENDPOINT_FAILURE, "its process died with signal SIGKILL"),
    ],
)
def test_peers_that_do_not_end_within_the_grace_are_ended(
    strict: Gang, wrong: str, other: str, outcome: Outcome, message: str
) -> None:
    ref = strict.start(wrong, other)
    strict.gates.wait_until_began(wrong, other)
    strict.gates.open(wrong)  # the other one would wait for ever
    record = ref.wait(PATIENCE)

    assert failure_of(record)[2] == f"slot 0: {message}"
    assert [it.outcome for it in (record, *record.members)] == [outcome, outcome, Outcome.CANCELLED]
    assert failure_of(record.members[1])[2] == "a member of its group failed 0.05 s ago"
    assert f"{other} ended" not in strict.gates.log()
    assert [run_next(strict.worker, strict.own_pid, worker=worker).ok for worker in (0, 1)] == [True, True]


def test_each_member_has_the_deadline_of_the_group_and_a_consumer_no_member_that_runs(strict: Gang) -> None:
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        args = [strict.gates.at("a"), strict.gates.at("b")]
        refs.append(orch.submit_next_level_group(strict.gate_against_sigterm, args, workers=[0, 1], timeout=0.2))
        refs.append(orch.submit_next_level_group(strict.gate, args, workers=[0, 1], after=refs))

    strict.worker.submit(build)
    record, skipped = (ref.wait(PATIENCE) for ref in refs)

    outcome, kind, message = failure_of(record)
    assert (outcome, kind) == (Outcome.TIMEOUT, "TimeoutError")
    assert "TimeoutError: not finished within 0.2 s" in message
    assert {member.outcome for member in record.members} <= {Outcome.TIMEOUT, Outcome.CANCELLED}
    assert [one.outcome for one in (skipped, *skipped.members)] == [Outcome.SKIPPED] * 3
