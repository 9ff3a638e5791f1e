"""Graphs at random, on real processes that fail in every way: what must hold, whatever happens."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import levels_tasks
import pytest
from levels_stage import no_torch as no_torch
from levels_stage import nothing_left, scalars
from levels_stage import own_leases as own_leases
from support.processes import PATIENCE

from pytest_aorta.runtime import Orchestrator, Outcome, TaskArgs, TaskFailure, TaskRecord, TaskRef, Worker

#: What tasks do, how they end, and how often.
DEEDS = {
    "nothing": ({Outcome.SUCCESS}, 14),
    "boom": ({Outcome.TASK_FAILURE}, 1),
    "die": ({Outcome.ENDPOINT_FAILURE}, 1),
    "hang": ({Outcome.TIMEOUT}, 1),
}


@pytest.mark.statement(12)
@pytest.mark.statement(13)
@pytest.mark.statement(25)
@pytest.mark.statement(29)
@pytest.mark.parametrize("seed", range(4))
def test_every_task_settles_as_it_must(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    deeds: list[str] = []
    before: list[list[int]] = []
    refs: list[TaskRef] = []

    def args(number: int, deed: str) -> TaskArgs:
        return scalars(str(tmp_path), number, deed)

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        for number in range(80):
            deed = dice.choices(list(DEEDS), [weight for _, weight in DEEDS.values()])[0]
            wanted = dice.sample(range(number), min(number, dice.choice([0, 0, 1, 1, 2, 3])))
            more: dict[str, Any] = {"after": [refs[other] for other in wanted]}
            if deed == "hang":
                more["timeout"] = 0.05
            kind = dice.randrange(5)
            if kind == 0:
                ref = orch.submit_sub(handle, args(number, deed), **more)
            elif kind == 1:
                ref = orch.submit_sub_group(handle, [args(number, deed), args(number, "nothing")], **more)
            elif kind == 2:
                ref = orch.submit_next_level(handle, args(number, deed), worker=dice.randrange(2), **more)
            elif kind == 3:
                ref = orch.submit_next_level(handle, args(number, deed), **more)
            else:
                both = [args(number, "nothing"), args(number, deed)]
                ref = orch.submit_next_level_group(handle, both, workers=dice.sample(range(2), 2), **more)
            deeds.append(deed)
            before.append(wanted)
            refs.append(ref)

    with nothing_left(), Worker(3, device_ids=[0, 1], num_sub_workers=2, grace=0.05, allowed_failures=None) as worker:
        handle = worker.register(levels_tasks.deed)
        run = worker.submit(build)
        records = [ref.wait(2 * PATIENCE) for ref in refs]
        assert run.records == records
        assert worker._dispatcher.graph.live == 0

    log = (tmp_path / "log").read_text().split()
    for number, record in enumerate(records):
        failed = [other for other in before[number] if not records[other].ok]
        if failed:
            assert record.outcome is Outcome.SKIPPED
            assert record.failure in [_passed_on(records[other]) for other in failed]
            assert f"+{number}" not in log
        else:
            # A deadline can also hit a process that has not quite begun.
            assert record.outcome in DEEDS[deeds[number]][0]
            for other in before[number] if f"+{number}" in log else ():
                last = max(at for at, word in enumerate(log) if word == f"-{other}")
                assert last < log.index(f"+{number}")


def _passed_on(record: TaskRecord) -> TaskFailure | None:
    """The failure of a task that waits for this one: it names the task that failed itself."""
    assert record.failure is not None
    own = record.outcome is not Outcome.SKIPPED
    return record.failure.at(f"deed (task {record.id}) failed") if own else record.failure
