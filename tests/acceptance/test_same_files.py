"""Beside xdist the files of trials are the same, but for what says when, where and in which process it was."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage, counts

#: All that may differ, as paths into a trial file, with all that is below.
MAY_DIFFER = (
    "started_at",
    "wall_clock_sec",
    "phases_sec",
    "env.captured_at",
    "env.end.captured_at",
    "env.env_vars.AORTA_TRIAL_DIR",
    "env.env_vars.TMPDIR",
    "env.process.pid",
    "env.process.ppid",
    "env.process.memory_available_bytes",
    "env.process.load_average",
    "env.process.pressure",
    "failure.at",
    "result.elapsed_sec",
    "result.step_times_ms",
    "result.metrics.pid",
    *("zygote", "how_started", "seeds.hash", "request.hash_seed"),
    *("side_by_side.workers", "side_by_side.slot"),
    *("request.resources.workers", "request.resources.worker"),
)


def facts(node: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every leaf of a trial file by its path."""
    if isinstance(node, dict | list) and node:
        items = node.items() if isinstance(node, dict) else enumerate(node)
        return {name: leaf for key, value in items for name, leaf in facts(value, (*path, str(key))).items()}
    return {".".join(path): node}


def comparable(trial: dict[str, Any]) -> dict[str, Any]:
    """The leaves of a trial file, with the names of types for those that may differ."""
    free = re.compile("|".join(re.escape(path) + r"(\..*)?" for path in MAY_DIFFER))
    return {path: type(leaf) if free.fullmatch(path) else leaf for path, leaf in facts(trial).items()}


@pytest.mark.slow
def test_the_files_are_the_same(stage: Stage) -> None:
    """In one folder, since tracebacks name files."""
    stage.copy(Path(__file__).parent / "simple_workloads.py")
    stage.register(tells="simple_workloads:Tells", broken="simple_workloads:Breaks")
    workloads = ("--aorta-workload", "tells", "--aorta-workload", "broken")
    cells = ("--aorta-seed", "1", "--aorta-mitigations", "none", "--aorta-mitigations", "omp_1,malloc_perturb")
    found = {}
    for results, options in {"plain": (), "xdist": ("-n", "2")}.items():
        where = ("--aorta-results-dir", results)
        done = stage.run(*workloads, *cells, *where, *options, env={"PYTHONHASHSEED": "1"})
        assert counts(done) == {"passed": 2, "failed": 2}
        found[results] = {path: comparable(trial) for path, trial in stage.trials(results).items()}
    assert found["xdist"] == found["plain"]
