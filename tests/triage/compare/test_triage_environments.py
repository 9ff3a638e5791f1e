"""Real snapshots: every fact of them has a name, or is left out on purpose, and two runs on one machine are alike."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from support.environments import env
from support.records import record
from support.stage import Stage

from pytest_aorta.triage.compare import Side, read_side
from pytest_aorta.triage.environments import Environments, differences


def all_environments(side: Side) -> Environments:
    found = Environments()
    for each in side.environments.values():
        found.update(each)
    return found


def test_two_runs_on_one_machine_differ_in_what_was_changed(stage: Stage) -> None:
    once = ("--aorta-workload", "gemm", "--aorta-trials", "1", "--aorta-results-dir")
    stage.run(*once, "a")
    stage.run(*once, "b", env={"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO", "MY_SLOW": "1", "MY_TOKEN": "hunter2"})
    a, b = (all_environments(read_side(stage.path / name)) for name in "ab")

    said = {str(each).partition(" ")[0]: str(each) for each in differences(a, b)}
    assert said.pop("OMP_NUM_THREADS") == "OMP_NUM_THREADS unset -> 1"
    assert said.pop("NCCL_DEBUG") == "NCCL_DEBUG unset -> INFO"
    # Any other variable, too, and whatever is in it.
    assert said.pop("MY_SLOW") == "MY_SLOW unset -> (value not recorded)"
    assert said.pop("MY_TOKEN") == "MY_TOKEN unset -> (value not recorded)"
    assert not any("hunter2" in file.read_text() for file in (stage.path / "b").rglob("*.json"))
    # Those that OMP_NUM_THREADS decides, where there is more than one core.
    assert all(line.startswith("torch threads ") for line in said.values())
    assert all(str(each.to_plain()["text"]) for each in differences(b, a))


@given(st.lists(st.sampled_from(["2.12.0", "2.13.0", None]), min_size=1, max_size=6))
def test_the_order_of_trials_and_of_keys_does_not_matter(versions: list[str | None]) -> None:
    records = [record(env=env(torch__version=version)) for version in versions]
    shuffled = [json.loads(json.dumps(each, sort_keys=True)) for each in reversed(records)]
    one, two, parts = Environments(), Environments(), Environments()
    for each in records:
        one.add(each)
        alone = Environments()
        alone.add(each)
        parts.update(alone)
    for each in shuffled:
        two.add(each)
    assert one.facts() == two.facts() == parts.facts()
    assert differences(one, two) == differences(parts, one) == []
