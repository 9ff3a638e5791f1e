"""However trials are run, their files are the same, but for what says when, where and in which process it was."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage, counts, text

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent

#: All that may differ, as paths into a trial file, with all that is below; ``*`` is any index of a list.
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
)

#: In addition, between workers of xdist.
MAY_DIFFER_UNDER_XDIST = (
    *("side_by_side.workers", "side_by_side.slot"),
    *("request.resources.workers", "request.resources.worker"),
)

#: In addition, between isolations.
MAY_DIFFER_BETWEEN_ISOLATIONS = (
    *("request.isolation", "request_fingerprint", "fingerprint_parts.isolation"),
    *("env.process.threads", "env.end.libraries", "env.end.modules"),
)

#: Whose leaves below may be others, too: a zygote has imported what examines it.
MAY_DIFFER_IN_KEYS = ("env.end.libraries", "env.end.modules")

#: Trials that pass and trials that fail, in two cells.
WORKLOADS = ("--aorta-workload", "tells", "--aorta-workload", "broken")
CELLS = ("--aorta-seed", "1", "--aorta-mitigations", "none", "--aorta-mitigations", "omp_1,malloc_perturb")


def facts(node: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every leaf of a trial file by its path; of what may differ, only its type."""
    if isinstance(node, dict | list) and node:
        items = node.items() if isinstance(node, dict) else enumerate(node)
        return {name: leaf for key, value in items for name, leaf in facts(value, (*path, str(key))).items()}
    return {".".join(path): node}


def comparable(trial: dict[str, Any], may_differ: tuple[str, ...]) -> dict[str, Any]:
    """The leaves of a trial file, with the names of types for those that may differ."""
    free = re.compile("|".join(re.escape(path).replace(r"\*", r"[^.]+") + r"(\..*)?" for path in may_differ))
    return {
        next((each for each in MAY_DIFFER_IN_KEYS if each in may_differ and path.startswith(each)), path): (
            type(leaf) if free.fullmatch(path) else leaf
        )
        for path, leaf in facts(trial).items()
    }


def run(stage: Stage, results: str, *options: str) -> tuple[pytest.RunResult, dict[str, dict[str, Any]]]:
    where = ("--aorta-results-dir", results)
    done = stage.run(*WORKLOADS, *CELLS, *where, *options, env={"PYTHONHASHSEED": "1"})
    assert done.ret == 1, text(done)
    return done, stage.trials(results)


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One folder for all runs, since tracebacks name files."""
    stage = Stage(tmp_path_factory.mktemp("theatre") / "stage")
    stage.copy(HERE / "simple_workloads.py")
    stage.register(tells="simple_workloads:Tells", broken="simple_workloads:Breaks")
    yield stage
    stage.close()


@pytest.fixture(scope="module")
def plain(theatre: Stage) -> tuple[pytest.RunResult, dict[str, dict[str, Any]]]:
    return run(theatre, "plain")


@pytest.mark.parametrize(
    ("name", "options", "may_differ"),
    [
        ("xdist", ("-n", "2"), MAY_DIFFER + MAY_DIFFER_UNDER_XDIST),
        pytest.param(
            "spawn",
            ("--aorta-isolation", "spawn"),
            MAY_DIFFER + MAY_DIFFER_BETWEEN_ISOLATIONS,
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_files_are_the_same(
    theatre: Stage,
    plain: tuple[pytest.RunResult, dict[str, dict[str, Any]]],
    name: str,
    options: tuple[str, ...],
    may_differ: tuple[str, ...],
) -> None:
    done, trials = run(theatre, name, *options)
    assert counts(done) == counts(plain[0]) == {"passed": 2, "failed": 2}
    assert list(trials) == list(plain[1])
    for path, trial in trials.items():
        assert comparable(trial, may_differ) == comparable(plain[1][path], may_differ), path
