"""What a trial costs: an empty one, with ranks, of a command, in slots, with lazy imports, with collectors."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench, Comparison, Measure, Subject, duration, table, verdict
from pytest_aorta.collectors.contract import load
from pytest_aorta.registry import Registry

_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "pytest_aorta.plugin.hooks")


def _trials(bench: Bench, number: int, *arguments: str) -> Measure:
    return lambda: bench.items(*arguments, f"--aorta-trials={number}")


# --- torch: against a bare fork, a fork server, a fresh process and pytest-forked ------------------------------------

_FORKED = ("pytest<9", "pytest-forked")

_FORK = "--aorta-isolation=fork"


def torch(bench: Bench) -> dict[str, Any]:
    number = 60

    def loop(kind: str) -> Measure:
        return lambda: bench.python("loops.py", kind, str(number))

    # In this order, so that the trial is measured right beside what it is close to.
    subjects = {
        "fork": Subject("os.fork, os._exit, os.waitpid with torch imported", loop("fork")),
        "server": Subject(
            "a fork server of 30 lines: fork, logs, deadline, a record written and synced", loop("server")
        ),
        "trial": Subject(
            "a trial that does nothing, --aorta-isolation fork", _trials(bench, number, "workloads.py::Trivial", _FORK)
        ),
        "auto": Subject(
            "the same with several starts, --aorta-isolation auto", _trials(bench, number, "workloads.py::Trivial")
        ),
        "import": Subject('python -c "import torch"', lambda: bench.wall(sys.executable, "-c", "import torch")),
    }
    comparisons = [
        Comparison("trial / bare fork", "trial", "fork", at_most=1.5),
        Comparison("trial / fork server of 30 lines", "trial", "server", at_most=1.3),
        Comparison("fresh process / trial", "import", "trial", at_least=40),
        Comparison("auto / fork", "auto", "trial"),
    ]
    try:
        forked = _forked_python(bench.options.venv_cache.resolve())
    except subprocess.CalledProcessError as error:
        print(f"without pytest-forked, which cannot be installed:\n{error.stderr.strip()}")
    else:
        (bench.folder / "test_trivial.py").write_text(
            "import pytest, torch\n"
            f"@pytest.mark.parametrize('trial', range({number}))\n"
            "def test_trivial(trial): pass\n"
        )  # fmt: skip
        subjects["forked"] = Subject(
            "a test that does nothing, pytest-forked",
            lambda: bench.items("--forked", "test_trivial.py", plugin="pytest_forked", python=forked),
        )
        comparisons.append(Comparison("trial / pytest-forked", "trial", "forked", at_most=1.0))
    return bench.compare(subjects, comparisons)


def _forked_python(cache: Path) -> str:
    """The interpreter of a venv with pytest-forked, which needs an older pytest; it sees this interpreter's torch."""
    folder = cache / f"forked-{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    complete = folder / "complete"  # written last: half a venv is made again
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    wanted = "\n".join([sys.executable, spec.origin, *_FORKED])
    if not complete.exists() or complete.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True, symlinks=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *_FORKED]
        subprocess.run(command, capture_output=True, text=True, check=True)
        # Entries of a .pth file come after the venv's own packages, so only what is missing there is found here.
        site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        (site / "torch_of_the_caller.pth").write_text(f"{Path(spec.origin).parents[1]}\n")
        complete.write_text(wanted)
    return str(python)


# --- gloo: two and four ranks from start to result, against torchrun -------------------------------------------------


def gloo(bench: Bench) -> dict[str, Any]:
    def torchrun(ranks: int) -> list[float]:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
        # Static rendezvous: c10d's would wait a random time in addition.
        command = (sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={port}")
        return bench.wall(*command, "gloo_ranks.py")

    subjects, comparisons = {}, []
    for ranks in (2, 4):
        trial, script = f"trial of {ranks}", f"torchrun of {ranks}"
        subjects[trial] = Subject(
            f"a trial of {ranks} gloo ranks and an all-reduce",
            _trials(bench, 12, "gloo_ranks.py", f"--aorta-nproc={ranks}"),
        )
        subjects[script] = Subject(
            "torchrun of a script that does the same",
            lambda ranks=ranks: torchrun(ranks),  # type: ignore[misc]
        )
        comparisons.append(Comparison(f"torchrun / trial of {ranks} ranks", script, trial, at_least=20))
    return bench.compare(subjects, comparisons)


# --- slots: one trial at a time and two at a time, and -n 2 beside it ------------------------------------------------

#: 64 trials of single-threaded products for some tenths of a second each.
_GEMM = (
    "--aorta-workload=gemm",
    "--aorta-config=sizes=512x512x512",
    "--aorta-config=dtypes=float32",
    "--aorta-config=steps=16",
    "--aorta-trials=64",
)


def slots(bench: Bench) -> dict[str, Any]:
    def run(title: str, *options: str, **environ: str) -> Subject:
        said = "".join(f", {name}={value}" for name, value in environ.items())
        return Subject(title + said, lambda: bench.wall(*_PYTEST, "-p", "xdist", *_GEMM, *options, **environ))

    subjects = {
        "one": run("--aorta-slots 1", "--aorta-slots=1", OMP_NUM_THREADS="1"),
        "two": run("--aorta-slots 2", "--aorta-slots=2", OMP_NUM_THREADS="1"),
        "xdist": run("-n 2", "-n2", OMP_NUM_THREADS="1"),
        "one_free": run("--aorta-slots 1", "--aorta-slots=1"),
        "two_free": run("--aorta-slots 2", "--aorta-slots=2"),
        "xdist_free": run("-n 2", "-n2"),
        "two_own": run("--aorta-slots 2,own-cores", "--aorta-slots=2,own-cores"),
        "xdist_own": run("-n 2 --aorta-slots own-cores", "-n2", "--aorta-slots=own-cores"),
    }
    comparisons = (
        Comparison("1 slot / 2 slots, one thread each", "one", "two", at_least=1.7),
        Comparison("-n 2 / 2 slots, one thread each", "xdist", "two"),
        Comparison("1 slot / 2 slots, threads not fixed", "one_free", "two_free"),
        Comparison("2 slots, threads not fixed / 2 slots, cores of their own", "two_free", "two_own"),
        Comparison("-n 2, threads not fixed / -n 2, cores of their own", "xdist_free", "xdist_own"),
        Comparison("1 slot, threads not fixed / 2 slots, cores of their own", "one_free", "two_own"),
        Comparison("-n 2, threads not fixed / 2 slots, cores of their own", "xdist_free", "two_own"),
    )
    return bench.compare(subjects, comparisons)


# --- snapshots: of a trial's environment, at its start and at its end ------------------------------------------------


def snapshots(bench: Bench) -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    for _ in range(bench.options.rounds):
        # This file is in a repository: a workload in one is what costs more.
        for name, seconds in bench.python("snapshot_clock.py", "50", str(Path(__file__).resolve())).items():
            found.setdefault(name, []).extend(seconds)
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    highest = {
        name: statistics.quantiles(seconds, n=20)[-1] if len(seconds) > 1 else seconds[0]
        for name, seconds in found.items()
    }
    rows = [(name, duration(medians[name]), duration(highest[name])) for name in sorted(found)]
    print("\n".join(table([("", "median", "highest of 20"), *rows])))
    both = medians["warm: both"]
    print(f"both snapshots of a trial: {duration(both)}, at most 5 ms expected: {verdict(both <= 0.005)}")
    return {"median": medians, "highest of 20": highest}


# --- lazy: torch imported in run(), torch._dynamo for an optimizer in setup() ----------------------------------------


def lazy(bench: Bench) -> dict[str, Any]:
    number = 12  # of which the first ones, which import, do not count

    def setups(preload: str) -> list[float]:
        bench.items("workloads.py::Optimizer", f"--aorta-trials={number}", f"--aorta-preload={preload}")
        records = [json.loads(path.read_text()) for path in bench.folder.glob("results/**/trial_*.json")]
        return [record["phases_sec"]["setup"] for record in records if record["trial_index"] >= 2]

    none = "--aorta-preload=none"
    subjects = {
        "above": Subject(
            "a trial of a workload that imports torch above", _trials(bench, number, "workloads.py::Trivial", _FORK)
        ),
        "lazy": Subject("a trial that imports torch in run()", _trials(bench, number, "lazy_workload.py", _FORK)),
        "unaided": Subject("the same, --aorta-preload none", _trials(bench, number, "lazy_workload.py", none, _FORK)),
        "setup": Subject("setup() that makes an optimizer", lambda: setups("auto")),
        "setup unaided": Subject("the same, --aorta-preload none", lambda: setups("none")),
    }
    comparisons = (
        Comparison("import torch in run() / above", "lazy", "above", at_most=3),
        Comparison("the same, --aorta-preload none", "unaided", "above"),
    )
    report = bench.compare(subjects, comparisons)
    print(f"setup() with an optimizer: at most 50 ms: {verdict(report['subjects']['setup']['median'] <= 0.05)}")
    return report


# --- command: against subprocess.run of the same command in a loop, a class, and torchrun as typed -------------------


def command(bench: Bench) -> dict[str, Any]:
    def trials(number: int, words: Sequence[str], *options: str) -> Measure:
        return _trials(bench, number, f"--aorta-command={shlex.join(words)}", *options)

    def loop(words: Sequence[str]) -> Measure:
        return lambda: bench.python("loops.py", "command", "60", *words)

    python = (sys.executable, "-c", "pass")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "gloo_ranks.py")
    subjects = {
        "torch class": Subject("a trial of a class: 100 steps with torch", _trials(bench, 12, "torch_steps.py")),
        "torch script": Subject(
            "a trial of a script that does the same", trials(12, (sys.executable, "torch_steps.py"))
        ),
        "torchrun": Subject("a trial of torchrun with 2 gloo ranks, in forks", trials(12, torchrun)),
        "torchrun typed": Subject("as typed", trials(5, torchrun, "--aorta-launcher=as-typed")),
        "plain true": Subject("subprocess.run of true", loop(["true"])),
        "true": Subject("a trial of it", trials(60, ["true"])),
        "plain python": Subject("subprocess.run of python -c pass", loop(python)),
        "python": Subject("a trial of it", trials(60, python)),
    }
    comparisons = (
        Comparison("torch script / the same as a class", "torch script", "torch class", at_most=1.5),
        Comparison("torchrun as typed / in forks, 2 ranks", "torchrun typed", "torchrun", at_least=15),
        Comparison("trial / subprocess.run, python -c pass", "python", "plain python", at_most=2),
        Comparison("trial / subprocess.run, true", "true", "plain true"),
    )
    report = bench.compare(subjects, comparisons)
    added = {}
    for name in ("true", "python"):
        both = (report["subjects"][key]["seconds"] for key in (name, f"plain {name}"))
        added[name] = min(trial - plain for trial, plain in zip(*both, strict=True))
    said = ", ".join(f"{duration(seconds)} to {name}" for name, seconds in added.items())
    print(f"a trial adds {said} in its best round, at most 20 ms expected: {verdict(max(added.values()) <= 0.02)}")
    return {**report, "added": added}


# --- collectors: what they add to a step of fsdp with two ranks, against the same trial without ----------------------

#: Steps of a trial, and options of the workload; steps of the second take 200 ms and more.
_SIZES = {
    "small": (40, ()),
    "large": (16, ("dim=256", "layers=4", "batch_size=8", "sequence_length=128")),
}

#: Largest ratios of the median steps that are expected, by collector.
_EXPECTED = {"numerics": {"small": 1.3, "large": 1.1}, "divergence": {"small": 1.5, "large": 1.2}}


def collectors(bench: Bench) -> dict[str, Any]:
    def steps(size: str, *options: str) -> Measure:
        number, config = _SIZES[size]
        arguments = ["--aorta-workload=fsdp", "--aorta-nproc=2", f"--aorta-steps={number}", *options]
        arguments += [f"--aorta-config={each}" for each in config]

        def measured() -> list[float]:
            bench.run(*_PYTEST, *arguments)
            [path] = (bench.folder / "results").rglob("trial_*.json")
            times = json.loads(path.read_text())["result"]["step_times_ms"]
            return [milliseconds / 1000 for milliseconds in times[number // 4 :]]

        return measured

    # Off: of a trial that passes, only failed ones have any. What it differs from 1 is noise of the machine.
    collected: dict[str, tuple[str, ...]] = {"off": ("--aorta-collect=numerics", "--aorta-collect-on-failure")}
    for name in Registry.load().names("collectors"):
        try:
            if load([name])[name].in_process is not None:
                collected[name] = (f"--aorta-collect={name}",)
        except Exception as error:
            print(f"without {name}: {error}")
    subjects, comparisons = {}, []
    for size in _SIZES:
        subjects[size] = Subject(f"a {size} step", steps(size))
        for name, options in collected.items():
            subjects[f"{size} {name}"] = Subject(f"with {name}", steps(size, *options))
            at_most = _EXPECTED.get(name, {}).get(size)
            comparisons.append(Comparison(f"{size} step, {name} / without", f"{size} {name}", size, at_most=at_most))
    return bench.compare(subjects, comparisons)
