"""Searches that pytest runs: bisect, amplify and minimize."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pytest_aorta.cli.run import StopsAtDashes, run_pytest
from pytest_aorta.cli.shared import AnswersByStatus
from pytest_aorta.common.texts import COMMIT_PREFIX, INLINE_PREFIX
from pytest_aorta.probe.variables import has_secret
from pytest_aorta.runtime.resources.devices import are_named_only, find_devices
from pytest_aorta.settings import BESIDE, BY_NAME, PREFIX, RequestError
from pytest_aorta.trials.command_line import script_of

#: A commit: its hash, its subject, and the files that it touches.
Commit = tuple[str, str, list[str]]

_max_trials = click.option(
    "--max-trials", metavar="N", help=f"All trials together (default {BY_NAME['max-trials'].default})."
)
_options_of_pytest = click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF PYTEST]...")


def _shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What bisect and amplify both take, after their own options."""
    signature = click.option(
        "--signature", default="", metavar="TEXT", help="Only failures whose way to fail has this text count."
    )
    return _max_trials(signature(_options_of_pytest(command)))


class _Search(AnswersByStatus, StopsAtDashes):
    """Its words after ``--`` are a command."""


def _run(words: Sequence[str], command: list[str] | None, settings: Mapping[str, str | None]) -> None:
    status = run_pytest([*words, *([f"--aorta-command={shlex.join(command)}"] if command else [])], settings)
    import pytest

    # It has said what it lacks: a command or a workload.
    nothing, wrong_use = int(pytest.ExitCode.NO_TESTS_COLLECTED), int(pytest.ExitCode.USAGE_ERROR)
    raise click.exceptions.Exit(wrong_use if status == nothing else status)


@click.command(
    "minimize",
    cls=_Search,
    context_settings={"ignore_unknown_options": True},
    epilog="A command follows --: minimize A,B -- python train.py",
)
@click.argument("mitigations", metavar="A,B")
@_max_trials
@_options_of_pytest
@click.pass_obj
def minimize(
    command: list[str] | None, /, mitigations: str, max_trials: str | None, arguments: tuple[str, ...]
) -> None:
    """pytest runs the trials, with its options. The baseline is --aorta-mitigations. Exit status 0: what is needed was
    found; 1: not, or nothing fixes; 4: wrong use.
    """
    _run(arguments, command, {"minimize": mitigations, "max-trials": max_trials})


@click.command(
    "bisect",
    cls=_Search,
    context_settings={"ignore_unknown_options": True},
    options_metavar="AXIS [OPTIONS]",
    epilog="A command follows --: bisect --commits v1..HEAD -- python train.py",
)
@click.option("--commits", metavar="OLD..NEW", help="Commits, each in a working tree of its own; first parents only.")
@click.option("--repo", type=click.Path(exists=True, file_okay=False), metavar="DIR", help="Of --commits (default .).")
@click.option("--build", metavar="CMD", help="Makes the working tree of a commit ready; where it fails, it is skipped.")
@click.option("--all-parents", is_flag=True, help="Commits of merged branches as well.")
@click.option("--versions", metavar="PKG==A,B,C", help="Versions of a package, or A..C for those of the index.")
@click.option("--values", metavar="NAME=A,B,C", help="Values of a variable, or of config.NAME.")
@click.option("--environments", metavar="A,B,C", help="Environments.")
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 1, min_open=True, max_open=True),
    default=0.95,
    metavar="P",
    show_default=True,
    help="Probability at which a change is taken for found.",
)
@click.option(
    "--speed", is_flag=True, help="Which change makes it slower, or faster: by step times, else whole trials."
)
@click.option("--prior-path", multiple=True, metavar="GLOB=WEIGHT", help="Commits that touch such a file are likelier.")
@click.option("--prior-text", multiple=True, metavar="REGEX=WEIGHT", help="Commits with such a subject are likelier.")
@_shared_options
@click.pass_obj
def bisect(command: list[str] | None, /, arguments: tuple[str, ...], **given: Any) -> None:
    """Neither failure rate need be known. pytest runs the trials, with its options: bisect --values
    OMP_NUM_THREADS=1,2,4,8 --aorta-workload gemm. Exit status 0: a change was found, and fresh trials confirm it;
    1: none within --max-trials; 4: wrong use.
    """
    axes = [name for name in ("commits", "versions", "values", "environments") if given[name]]
    if len(axes) != 1:
        raise RequestError("bisect: expected one of --commits, --versions, --values and --environments")
    (axis,) = axes
    for name in ("repo", "build", "prior_path", "prior_text"):
        if axis != "commits" and given[name]:
            raise RequestError(f"bisect: --{name.replace('_', '-')} belongs to --commits, not to --{axis}")
    request: dict[str, Any] = {"confidence": given["confidence"], "signature": given["signature"]}
    request["speed"] = given["speed"]
    words = list(arguments)
    if given["speed"] and given["signature"]:
        raise RequestError("bisect: --speed and --signature: use one of them; failed trials have no speed")
    if has_secret(given["build"] or ""):
        raise RequestError("bisect: --build may hold a secret, and records name it; read it from a variable there")
    if axis == "commits":
        commits = commits_of(given["commits"], given["repo"] or ".", first_parent=not given["all_parents"])
        if command:
            _refuse_script_of_one_tree(command, given["repo"] or ".", given["commits"])
        suffix = f"@{Path(given['repo']).absolute()}" if given["repo"] else ""
        words += [f"--aorta-environment={COMMIT_PREFIX}{commit}{suffix}" for commit, _, _ in commits]
        request["titles"] = [textwrap.shorten(subject, 60, placeholder=" ...") for _, subject, _ in commits]
        request["weights"] = weights_of(commits, given["prior_path"], given["prior_text"])
    elif axis == "versions":
        words += [f"--aorta-environment={INLINE_PREFIX}{each}" for each in versions_of(given["versions"])]
    elif axis == "values":
        try:
            BY_NAME["vary"].parse(given["values"])
        except ValueError as error:
            raise RequestError(f"--values {given['values']!r}: expected {error}") from None
        words.append(f"--aorta-vary={given['values']}")
    else:
        words += [f"--aorta-environment={name.strip()}" for name in given["environments"].split(",")]
    _run(words, command, {"bisect": json.dumps(request), "build": given["build"], "max-trials": given["max_trials"]})


@click.command(
    "explain",
    cls=_Search,
    context_settings={"ignore_unknown_options": True},
    epilog="A command follows --: explain good.json bad.json -- python train.py",
)
@click.argument("good", type=click.Path(path_type=Path))
@click.argument("bad", type=click.Path(path_type=Path))
@_shared_options
@click.pass_obj
def explain(command: list[str] | None, /, arguments: tuple[str, ...], **given: Any) -> None:
    """Which differences between two sides make it fail here. GOOD and BAD: trial files, results directories, or outputs
    of pytest-aorta env --json --all, of a machine where it works and of one where it fails. Variables, threads, cores,
    limits, package versions and options can be changed here; pytest runs the trials, with its options. Without a
    command or a workload, that of BAD is taken. Exit status 0: a smallest set of differences was found; 1: none within
    --max-trials; 4: wrong use.
    """
    from pytest_aorta.search.explain import ExplainRequest, listing, sorted_out
    from pytest_aorta.triage.environments import differences
    from pytest_aorta.triage.reading import environments_of

    good, bad = given["good"], given["bad"]
    changes, rest = sorted_out(differences(environments_of(good), environments_of(bad)))
    for line in listing(changes, rest) if changes or rest else ():
        click.echo(line)
    if not changes:
        raise RequestError(
            f"explain {good} {bad}: no difference between them can be made here; it does not look at seeds and hash "
            "seeds, which --aorta-replay FILE has"
        )
    words = list(arguments)
    if not command and not any(word.startswith(("--aorta-command", "--aorta-workload")) for word in words):
        words += _requested(bad, {name for each in changes for name in each.bad.options})
    request = ExplainRequest(tuple(changes), tuple(rest), given["signature"])
    _run(words, command, {"explain": request.to_json(), "max-trials": given["max_trials"]})


def _requested(path: Path, but: Collection[str]) -> list[str]:
    """Options of pytest for what the trials at ``path`` have run, but for these options of the workload."""
    from pytest_aorta.plan import option_text
    from pytest_aorta.triage.reading import Results

    found: set[tuple[str, ...]] = set()
    for trial in Results(path):
        request = trial.record.get("request") or {}
        name, config = request.get("workload", {}).get("name", ""), request.get("config") or {}
        others = {key: value for key, value in config.items() if key not in {*but, "command"}}
        what = f"--aorta-command={config['command']}" if "command" in config else f"--aorta-workload={name}"
        found.add((what, *(f"--aorta-config={key}={option_text(value)}" for key, value in others.items())))
    if len(found) != 1:
        what = f"{path} has {len(found)} workloads" if found else f"{path} names no workload"
        raise RequestError(f"explain: {what}; expected a command after --, or --aorta-workload NAME")
    return [*next(iter(found))]


def conditions(*, alone: bool = True) -> dict[str, str]:
    """Built-in conditions that may make a fault frequent: name -> mitigation.

    ``alone``: trials run one after the other, so that programs beside them load no other trial.
    """
    cores = os.sched_getaffinity(0)
    loop = f'{shlex.quote(sys.executable)} -c "while True: pass"'
    loops = f"for core in {' '.join(map(str, cores))}; do {loop} & done; wait"
    busy = f"stress-ng --cpu {len(cores)}" if shutil.which("stress-ng") else f"sh -c {shlex.quote(loops)}"
    built_in = {"all cores busy": f"{BESIDE}{busy}"} if alone else {}
    if alone and shutil.which("stress-ng"):
        built_in["memory under pressure"] = f"{BESIDE}stress-ng --vm 1 --vm-bytes 90%"
        built_in["scheduler and interrupts"] = f"{BESIDE}stress-ng --switch 2 --timer 2"
    built_in |= {
        "one core": f"{PREFIX}taskset -c {min(cores)}",
        "low priority": f"{PREFIX}nice -n 19",
        "batch scheduling": f"{PREFIX}chrt -b 0",
        "freed memory overwritten": "MALLOC_PERTURB_=165",
        "one malloc arena": "MALLOC_ARENA_MAX=1",
        "Python's debug allocator": "PYTHONMALLOC=debug",
        "one thread": "OMP_NUM_THREADS=1",
        "more threads than cores": f"OMP_NUM_THREADS={2 * len(cores)}",
    }
    if not are_named_only(find_devices()):
        built_in |= {
            "blocking launches": "CUDA_LAUNCH_BLOCKING=1",
            "collectives by rings": "NCCL_ALGO=Ring",
            "collectives by trees": "NCCL_ALGO=Tree",
            "the simple protocol": "NCCL_PROTO=Simple",
        }

    def can_be(text: str) -> bool:
        return not text.startswith(PREFIX) or shutil.which(shlex.split(text.removeprefix(PREFIX))[0]) is not None

    return {name: text for name, text in built_in.items() if can_be(text)}


@click.command(
    "amplify",
    cls=_Search,
    context_settings={"ignore_unknown_options": True},
    options_metavar="[OPTIONS]",
    epilog="A command follows --: amplify -- python train.py",
)
@click.option(
    "--condition",
    multiple=True,
    metavar="SET",
    help="Instead of the built-in ones: a mitigation set, NAME=VALUE, prefix:WORDS for a launcher prefix, or "
    "beside:WORDS for a program beside each trial (repeat).",
)
@_shared_options
@click.pass_obj
def amplify(command: list[str] | None, /, arguments: tuple[str, ...], **given: Any) -> None:
    """Which condition makes a rare fault frequent: one core, busy cores, another allocator, more threads, ... pytest
    runs the trials, with its options. Exit status 0: one was found, and fresh trials confirm it; 1: none within
    --max-trials; 4: wrong use.
    """
    alone = not any(word.startswith(("--aorta-slots", "-n")) for word in arguments)
    asked = {text: text for text in given["condition"]} or conditions(alone=alone)
    words = [*arguments, "--aorta-mitigations=none", *(f"--aorta-mitigations={text}" for text in asked.values())]
    names = ["no condition", *asked]
    request = {"names": names, "signature": given["signature"]}
    _run(words, command, {"amplify": json.dumps(request), "max-trials": given["max_trials"]})


def commits_of(text: str, repository: str, *, first_parent: bool = True) -> list[Commit]:
    """From OLD to NEW, both included.

    Raises:
        RequestError: git does not know them, or OLD is no ancestor of NEW.
    """
    old, dots, new = text.partition("..")
    if not dots or not old:
        raise RequestError(f"--commits {text!r}: expected OLD..NEW, such as v1.0..HEAD")
    new = new or "HEAD"
    parents = ["--first-parent"] if first_parent else []
    form = "--format=%x01%H%x02%s"
    _git(repository, text, "merge-base", "--is-ancestor", old, new, why=f"{old} is no ancestor of {new}")
    listing = _git(repository, text, "log", "-1", "--name-only", form, old)
    listing += _git(repository, text, "log", "--reverse", *parents, "--name-only", form, f"{old}..{new}")
    commits: list[Commit] = []
    for part in listing.split("\x01")[1:]:
        head, *files = part.splitlines()
        commit, _, subject = head.partition("\x02")
        commits.append((commit, subject, [name for name in files if name]))
    if len(commits) < 2:
        raise RequestError(f"--commits {text!r}: there is no commit after {old}")
    return commits


def _refuse_script_of_one_tree(command: Sequence[str], repository: str, text: str) -> None:
    """Refuse a tracked script that is named by its absolute path: it would be the same for every commit."""
    script = script_of(command) or command[0]
    top = Path(_git(repository, text, "rev-parse", "--show-toplevel").strip()).resolve()
    if not os.path.isabs(script) or not Path(script).resolve().is_relative_to(top):
        return
    if tracked := _git(repository, text, "ls-files", "--full-name", "--", script).strip():
        what = f"{tracked} is named by its absolute path, and would be the same file for every commit"
        raise RequestError(f"bisect: {what}; name it relative to the repository")


def _git(repository: str, text: str, *words: str, why: str = "") -> str:
    try:
        done = subprocess.run(
            ["git", "-C", repository, *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise RequestError(f"--commits {text!r}: git cannot be run: {error}") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split()).removeprefix("fatal: ")
        raise RequestError(f"--commits {text!r}: {said or why}; the repository is {Path(repository).absolute()}")
    return done.stdout


def weights_of(commits: Sequence[Commit], paths: Sequence[str], texts: Sequence[str]) -> list[float]:
    """How likely each commit is before any trial: the product of the weights that it matches; empty for all alike."""
    rules = [("--prior-path", text) for text in paths] + [("--prior-text", text) for text in texts]
    weights = [1.0] * len(commits)
    for option, text in rules:
        pattern, equals, number = text.rpartition("=")
        try:
            weight = float(number)
            matches = re.compile(pattern if option == "--prior-text" else fnmatch.translate(pattern)).search
        except (ValueError, re.error):
            weight = 0.0
        if not equals or not 0 < weight < float("inf"):
            form = "GLOB=WEIGHT, such as kernels/*=3" if option == "--prior-path" else "REGEX=WEIGHT, such as fuse=3"
            raise RequestError(f"{option} {text!r}: expected {form}") from None
        for at, (_, subject, files) in enumerate(commits):
            if any(map(matches, [subject] if option == "--prior-text" else files)):
                weights[at] *= weight
    return weights if rules else []


def versions_of(text: str) -> list[str]:
    """Requirements: ``numpy==1.26.0``, ... of ``numpy==1.26.0,2.0.0``, or of ``numpy==1.26..2.1`` from the index.

    Raises:
        RequestError: no such form, or the index has fewer than two versions in the range.
    """
    package, equals, versions = text.partition("==")
    if not equals or not versions:
        raise RequestError(f"--versions {text!r}: expected PACKAGE==A,B,C or PACKAGE==A..C")
    first, dots, last = versions.partition("..")
    if not dots:
        return [f"{package}=={each.strip()}" for each in versions.split(",")]
    from packaging.version import InvalidVersion, Version

    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", package]
    # A user may have pip say nothing.
    environ = {name: value for name, value in os.environ.items() if name != "PIP_QUIET"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=environ)
    listed = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    try:
        ends = Version(first), Version(last)
    except InvalidVersion as error:
        raise RequestError(f"--versions {text!r}: {error}") from None
    known = sorted(map(Version, listed[1].split(", "))) if listed else []
    chosen = [f"{package}=={each}" for each in known if ends[0] <= each <= ends[1]]
    if len(chosen) < 2:
        said = done.stderr.strip().rpartition("\n")[2] or f"pip names no versions of {package}"
        why = f"the index has {len(chosen)} versions in this range" if listed else said
        raise RequestError(f"--versions {text!r}: {why}")
    return chosen
