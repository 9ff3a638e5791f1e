"""From trial files to trials: which are found, what they are asked to be, and what no trial can be made of."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.records import record

from pytest_aorta.replay import ReplayError, find_replays

NOTHING: Mapping[str, str] = {}


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "w.py"
    path.touch()
    return path


@pytest.fixture
def request_of_a_trial(workload: Path) -> dict[str, Any]:
    return {
        "workload": {"name": "probe", "target": f"{workload}:Probe", "source_package": "file:w.py"},
        "environment": {"name": "local", "source_package": "pytest-aorta"},
        "interpreter": sys.executable,
        "cwd": str(workload.parent),
    }


def write(file: Path, **changes: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record(**changes)))
    return file


def test_of_a_folder_all_records_but_no_replays_no_history_and_no_other_files(
    tmp_path: Path, request_of_a_trial: dict[str, Any]
) -> None:
    results = tmp_path / "results"
    again = {"file": "x", "started_at": "now", "exit_status": "ok"}
    for name in ("probe/trial_1.json", "probe/trial_0.json", "other/cell/trial_0.json", ".history/x/trial_0.json"):
        write(results / name, request=request_of_a_trial)
    write(results / "replay/probe/cell/trial_0.json", request=request_of_a_trial, replay_of=again)
    write(results / "probe/trial_0/metrics.json")

    replays = find_replays([results, results / "probe/trial_0.json"], NOTHING)

    assert [replay.file.relative_to(results).as_posix() for replay in replays] == [
        *("other/cell/trial_0.json", "probe/trial_0.json", "probe/trial_1.json"),
    ]
    # Trials of several runs may have one name.
    assert [replay.name for replay in replays] == [f"probe[local-none-0{number}]" for number in ("", "~2", "~3")]
    assert len({replay.paths for replay in replays}) == 3


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a newer schema": ({"schema_version": "0.2"}, {}, "has schema_version '0.2'; this release of pytest-aorta reads "),
    "an older release": ({"request": None}, {}, "has no section `request`, which says how the trial was run"),
    "a wrong field": ({}, {"cwd": 3}, "no record of a trial: request.cwd: Input should be a valid string"),
    "no file of the workload": (
        {},
        {"workload": {"name": "w", "target": "/gone/w.py:W", "source_package": "file:w.py"}},
        "the file of its workload, /gone/w.py, is gone",
    ),
    "no module of the workload": (
        {},
        {"workload": {"name": "w", "target": "not_there.at_all:W", "source_package": "x"}},
        "the module of its workload, not_there.at_all, is not installed for ",
    ),
    "no script": (
        {},
        {
            "workload": {"name": "t", "target": "pytest_aorta.launch.child.elastic:run_script", "source_package": "x"},
            "config": {"script": "/gone/t.py", "source": "/gone/t.py"},
        },
        "the script /gone/t.py is gone",
    ),
    "several nodes": (
        {},
        {"elastic": {"nnodes": [2, 3]}},
        "a trial of several nodes; name their 2 hosts with --aorta-h",
    ),
    "a wrong option": ({}, {"elastic": {"nodes": 2}}, "request.elastic: KEY=VALUE with a KEY of max_restarts, "),
    "an outer launcher": (
        {"elastic": {"launcher": "external"}, "ranks": [{"rank": 0}, {"rank": 1}]},
        {},
        "start it as one: torchrun --nproc_per_node=2 -m pytest --aorta-replay FILE",
    ),
    "a secret in the prefix": (
        {},
        {"environment": {"name": "e", "launcher": ["env", "TOKEN=<redacted>"], "source_package": "x"}},
        "the command of environment 'e' holds a secret, which is not recorded; run the trial with ",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_run_again_names_the_file_and_the_reason(
    tmp_path: Path, request_of_a_trial: dict[str, Any], what: str
) -> None:
    changes, of_request, message = WRONG[what]
    file = write(tmp_path / "x.json", **{"request": {**request_of_a_trial, **of_request}, **changes})

    with pytest.raises(ReplayError) as caught:
        find_replays([file], NOTHING)

    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)


def test_a_folder_without_records_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match=f"{re.escape(str(tmp_path))}: there is no trial file in this folder"):
        find_replays([tmp_path], NOTHING)


def test_a_rank_of_an_outer_launcher_replays_only_what_was_one(
    tmp_path: Path, request_of_a_trial: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "x.json", request=request_of_a_trial)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(ReplayError, match=r"pytest is a rank of an outer launcher .*, which it was not when"):
        find_replays([file], NOTHING)
