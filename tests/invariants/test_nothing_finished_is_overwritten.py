"""A trial file is absent or complete; nothing that was finished is ever overwritten."""

from __future__ import annotations

import json
from pathlib import Path

from support.stage import Stage

FAULTY = Path(__file__).parents[1] / "plugin" / "faulty_workloads.py"


def test_no_temporary_files_are_left_and_files_can_be_shared(stage: Stage) -> None:
    stage.copy(FAULTY)
    stage.run_here("faulty_workloads.py::Passes", "faulty_workloads.py::SegfaultsInRun", "--aorta-trials", "2")
    expected = ["matrix.json", "matrix.md"]
    for name in ("Passes", "SegfaultsInRun"):
        for index in range(2):
            expected += [f"{name}/trial_{index}.json"]
            expected += [f"{name}/trial_{index}/{stream}.log" for stream in ("stderr", "stdout")]
    [packages] = [path for path in stage.everything() if path.startswith("packages-")]
    assert stage.everything() == sorted([*expected, packages])
    assert {(stage.results / path).stat().st_mode & 0o777 for path in stage.files()} == {0o644}


def test_earlier_results_move_to_the_history(echo: Stage) -> None:
    run = ("--aorta-workload", "echo", "--aorta-trials", "2")
    echo.run_here(*run, "--aorta-config", "run=1")
    assert echo.earlier() == []
    echo.run_here(*run, "--aorta-config", "run=2")
    echo.run_here(*run, "--aorta-config", "run=3")
    assert [trial["config"] for trial in echo.trials().values()] == [{"run": 3}] * 2
    kept = {path.name: path for path in sorted((echo.results / ".history").iterdir())}
    assert len(kept) == 2
    for number, folder in enumerate(kept.values(), start=1):
        for index in range(2):
            old = json.loads((folder / "echo" / f"trial_{index}.json").read_text())
            assert old["config"] == {"run": number}
            assert (folder / "echo" / f"trial_{index}" / "stdout.log").exists()
