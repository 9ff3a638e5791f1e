"""Collectors of a trial: what they need before it starts, and their findings when its processes are gone."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_aorta.collectors.contract import FOLDER, Collector, CollectorError, Context
from pytest_aorta.launch.child.rank_files import read_log
from pytest_aorta.launch.environment import interpreter
from pytest_aorta.launch.job import TrialJob
from pytest_aorta.launch.launch_mode import LaunchModeError, is_command
from pytest_aorta.trials.command_line import command_words
from pytest_aorta.trials.records import RankRecord
from pytest_aorta.trials.result import Collected

#: Bytes that each collector may leave in the folder of a trial.
LIMIT = 2**29

#: Seconds for a summary.
_PATIENCE = 120.0

#: Problems that are kept of each collector.
_MOST = 10

_PROGRAM = """
import json, os, sys
asked = json.load(sys.stdin)
sys.path[:] = asked["path"]
from pytest_aorta.collectors.contract import print_summary
from pytest_aorta.runtime.process_tree import die_with_parent
from pytest_aorta.trials.workload import to_plain
die_with_parent(os.getppid())
print_summary(asked, to_plain)
"""


def with_collectors(job: TrialJob, collectors: Mapping[str, Collector]) -> TrialJob:
    """A trial with the variables and the prefix that its collectors need.

    Raises:
        LaunchModeError: one of them cannot be used for it.
    """
    spec = job.spec
    variables: dict[str, str] = {}
    prefix: tuple[str, ...] = ()
    words = command_words(spec.overrides["command"]) if is_command(spec.workload.target) else ()
    for name, collector in collectors.items():
        context = Context(
            folder=(job.folder / FOLDER / name).absolute(),
            target=spec.workload.target,
            command=tuple(words),
            python=interpreter(spec.environment),
            environ={**job.inherited.variables, **spec.overlay},
            nproc=spec.execution.nproc,
        )
        try:
            needs = collector.preparation(context)
        except Exception as error:
            said = str(error) if isinstance(error, CollectorError) else f"{type(error).__name__}: {error}"
            raise LaunchModeError(f"--aorta-collect {name}: {said}") from error
        twice = sorted(needs.variables.keys() & (variables.keys() | spec.overlay.keys()))
        if twice:
            raise LaunchModeError(f"--aorta-collect {name} sets {twice[0]}, which the cell or another collector sets")
        variables |= needs.variables
        prefix = (*needs.prefix, *prefix)
    if not variables and not prefix:
        return job
    environment = replace(spec.environment, launcher=(*spec.environment.launcher, *prefix))
    execution = replace(spec.execution, isolation="spawn")
    overlay = {**spec.overlay, **variables}
    return job.with_spec(replace(spec, environment=environment, execution=execution, overlay=overlay))


def make_folders(folder: Path, collectors: Mapping[str, Collector]) -> None:
    for name in collectors:
        with contextlib.suppress(OSError):  # a full disk, as the record will say
            (folder / FOLDER / name).mkdir(parents=True, exist_ok=True)


def first_step(counted: int | None, printed: Sequence[int] | None) -> int | None:
    """The number that the output of a command gives its first step; ``None`` where it does not tell.

    It tells if it says each step that was counted, or each but the last, and skips none.

    Args:
        counted: how many steps the process with the lowest rank has made, where it could tell that.
        printed: the first step that the output has said, and how many.
    """
    return printed[0] if counted and printed is not None and printed[1] in (counted, counted - 1) else None


def collected(
    folder: Path,
    collectors: Mapping[str, Collector],
    ranks: Sequence[RankRecord],
    output: Mapping[str, Any] | None = None,
) -> dict[str, Collected]:
    """Their findings in the folder of a trial whose processes are gone; ``output``: of a command."""
    own = folder / FOLDER
    processes = read_log(own / "processes.jsonl") or []
    ended = [entry for entry in processes if entry["what"] == "ended"]
    processes = [entry for entry in processes if entry["what"] != "ended"]
    stems = _rename(own, processes, {rank.pid: rank.rank for rank in ranks if rank.pid is not None})
    begun = sorted({int(stem.removeprefix("rank_")) for stem in stems if stem.startswith("rank_")})
    first: int | None = 1
    if output is not None:
        least = [(entry["rank"] or 0, -entry["steps"]) for entry in ended]
        first = first_step(-min(least)[1] if least else None, output.get("steps"))
    collected = {name: _one(own / name, collector, begun, processes, first) for name, collector in collectors.items()}
    with contextlib.suppress(OSError):
        (own / "processes.jsonl").unlink(missing_ok=True)
        own.rmdir()  # only when it is empty
    return collected


def _rename(own: Path, processes: Sequence[Mapping[str, Any]], ranks: Mapping[int, int]) -> set[str]:
    """Rename files of processes after their ranks; a single process is rank 0. Returns the stems of started ones."""
    started = [entry for entry in processes if entry["what"] == "started"]
    wrote = {path.name.partition(".")[0] for path in own.glob("*/process_*")}
    alone = len(wrote) == 1 and not any(entry["rank"] is not None for entry in processes)
    names = {entry["stem"]: str(entry["stem"]) for entry in (started or processes)}
    for entry in started or processes:
        stem, rank = entry["stem"], ranks.get(entry["pid"])
        if entry["rank"] is None and (rank is not None or (alone and stem in wrote)):
            names[stem] = f"rank_{rank or 0}"
    for path in list(own.glob("*/process_*")):
        stem = path.name.partition(".")[0]
        target = names.get(stem, stem)
        if target != stem:
            path.rename(path.with_name(path.name.replace(stem, target, 1)))
    return set(names.values())


def _one(
    folder: Path,
    collector: Collector,
    ranks: Sequence[int],
    processes: Sequence[Mapping[str, Any]],
    first: int | None,
) -> Collected:
    problems = []
    is_there = ("started",) if collector.needs_torch else ("started", "found")
    if collector.in_process is not None and not any(entry["what"] in is_there for entry in processes):
        why = "no process of the trial has imported torch" if processes else "no Python process was started"
        problems.append(f"it has seen nothing: {why}")
    for path in sorted(folder.rglob("*.problem")):
        problems += [f"{path.stem}: {entry.get('error')}" for entry in read_log(path) or ()]
        path.unlink(missing_ok=True)
    problems += _shrink(folder)
    summary: dict[str, Any] = {"sentence": "", "data": {}, "artifacts": []}
    cls = type(collector)
    if cls.summarize is not Collector.summarize:
        asked = {
            **{"path": sys.path, "module": cls.__module__, "name": cls.__qualname__, "given": collector.given},
            **{"folder": str(folder.absolute()), "ranks": list(ranks), "first_step": first},
        }
        # By a process: third-party code may take hours, or never end. In a session of its own: Ctrl-C ends pytest,
        # which waits for what was found so far.
        run = partial(subprocess.run, capture_output=True, text=True, timeout=_PATIENCE, start_new_session=True)
        try:
            done = run([sys.executable, "-c", _PROGRAM], input=json.dumps(asked))
            if done.returncode:
                why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
                problems.append(f"its summary failed: {why}")
            else:
                summary = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            problems.append(f"its summary failed: TimeoutError: it took longer than {_PATIENCE:.0f} s")
        except Exception as error:
            problems.append(f"its summary failed: {type(error).__name__}: {error}")
    with contextlib.suppress(OSError):
        folder.rmdir()
    # The collector may be third-party code: a record names files of the trial only.
    inside = folder.resolve()
    left = map(Path, summary["artifacts"])
    own = [path for path in left if path.exists() and path.resolve().is_relative_to(inside)]
    artifacts = [str(inside.relative_to(inside.parents[2]) / path.resolve().relative_to(inside)) for path in own]
    return Collected(
        options=dict(collector.given),
        sentence=summary["sentence"],
        data=summary["data"],
        problems=problems[:_MOST],
        artifacts=artifacts,
    )


def _shrink(folder: Path) -> list[str]:
    """Remove the largest files of a collector that has left too much; returns what was removed."""
    sizes = {path: path.lstat().st_size for path in folder.rglob("*") if path.is_file()}
    total, removed = sum(sizes.values()), []
    for path, size in sorted(sizes.items(), key=lambda item: item[1], reverse=True):
        if total <= LIMIT:
            break
        path.unlink(missing_ok=True)
        total -= size
        removed.append(f"{path.relative_to(folder)} was removed: its {size} bytes are more than a trial may keep")
    return removed
