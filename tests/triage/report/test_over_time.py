"""Runs of one results directory beside each other: what is marked as a change, and what is not."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.projects import command
from support.records import record

from pytest_aorta.settings import RequestError
from pytest_aorta.triage.over_time import over_time, split_runs


def write_runs(results: Path, speeds: Sequence[float], rates: Sequence[float], trials: int = 10) -> None:
    """Weekly runs, of which all but the last are in the history."""
    draw = random.Random(results.name)
    for number, (speed, rate) in enumerate(zip(speeds, rates, strict=True)):
        place = results if number == len(speeds) - 1 else results / ".history" / f"2026010{number + 2}T000000.000Z"
        for index in range(trials):
            failed = draw.random() < rate
            times = [100 * speed * draw.gauss(1, 0.01) for _ in range(20)]
            written = record(
                trial_index=index,
                exit_status="workload_failed" if failed else "ok",
                started_at=f"2026-0{1 + number // 4}-{1 + 7 * (number % 4):02}T00:00:{index:02}.000+00:00",
                result={"passed": not failed, "step_times_ms": times},
                failure={"phase": "run", "kind": "result", "message": "no"} if failed else None,
            )
            file = place / "probe" / f"trial_{index}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(written))


def changes(results: Path) -> list[list[str]]:
    [runs] = over_time(split_runs(results)).values()
    return [[each.partition(":")[0] for each in run.changes] for run in runs]


def test_a_slowdown_of_a_tenth_in_the_third_of_four_weeks_is_seen_once(tmp_path: Path) -> None:
    write_runs(tmp_path, [1, 1, 1.1, 1.1], [0, 0, 0, 0])
    assert changes(tmp_path) == [[], [], ["slower"], []]
    result = command("report", tmp_path, "--over-time", "-o", tmp_path / "picture.svg")
    lines = result.stdout.splitlines()
    assert [("slower: +10%" in line) for line in lines[1:5]] == [False, False, True, False]
    assert "2026-01-15 00:00  0 of 10  0% (0% to 28%)" in lines[3]
    drawn = ElementTree.parse(tmp_path / "picture.svg").getroot()
    circles = [each for each in drawn.iter() if each.tag.endswith("circle")]
    assert [each.get("fill") for each in circles].count("#c22") == 1  # of the run, where its time is
    assert len(circles) == 8


def test_a_rate_that_changes_is_seen_and_changes_back(tmp_path: Path) -> None:
    write_runs(tmp_path, [1] * 4, [0.1, 0.1, 0.9, 0.1], trials=20)
    assert changes(tmp_path) == [[], [], ["fails more often"], ["fails less often"]]


def test_where_nothing_changes_hardly_anything_is_marked(tmp_path: Path) -> None:
    marked = 0
    for number in range(20):
        write_runs(tmp_path / str(number), [1] * 6, [0.3] * 6, trials=6)
        marked += any(changes(tmp_path / str(number)))
    assert marked <= 3


def test_one_run_is_no_history(tmp_path: Path) -> None:
    write_runs(tmp_path, [1], [0])
    with pytest.raises(RequestError, match="there is one run; pytest-aorta run --new makes more"):
        split_runs(tmp_path)
