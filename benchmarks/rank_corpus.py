"""``python -m benchmarks.rank_corpus``: is the right rank named, whatever goes wrong in it, and however it was started?

Runs the programs of ``tests/faults/corpus`` through the command line of pytest-aorta. The docstring of each says which
ranks are at fault, and what the message has to say. Of each trial, the record is

- *right*: it names a rank at fault (none where nobody is, or where nobody can know), and the status is as expected,
- *unknown*: it names none,
- *wrong*: it names another rank, or the trial has another status; *wrong and certain*: so, without a doubt.

Beside that, of the right ones: *unsaid*, where the first line does not have the words, or the kind of failure is
another one. A record that *contradicts itself* blames a rank that its message does not name as the cause.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

CORPUS = Path(__file__).parents[1] / "tests" / "faults" / "corpus"
_SUBJECTS = Path(__file__).with_name("subjects")

#: Variables of a launcher or of a run of pytest around this one.
_FOREIGN = re.compile(r"PYTEST|AORTA|TORCHELASTIC|PYTHONHASHSEED|MASTER_|((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$)")

#: Seconds until a trial has to end, where its program does not say so.
_DEADLINE = 90

#: Under load, and beside other trials, a program takes as many times as long to import torch.
_SLOWER = 2

Grade = Literal["right", "unknown", "wrong", "wrong and certain"]
GRADES: tuple[Grade, ...] = ("right", "unknown", "wrong", "wrong and certain")


@dataclass(frozen=True)
class Truth:
    """What the docstring of a program says, line by line, after its first paragraph.

    ``ranks``: as many it needs. ``guilty``: those that may be named as the cause (``guilty: none`` where no rank is).
    ``unknowable``: that none is named is right as well. ``status`` and ``kind``: each of these is right. ``says``: one
    of these, separated by ``|``, is in the first line of the message, whatever the case; nothing, where the trial
    passes. ``deadline``: seconds, of a program that may hang. ``elsewhere``: launchers under which the program has no
    meaning.
    """

    ranks: int
    guilty: frozenset[int]
    unknowable: bool
    status: frozenset[str]
    kind: frozenset[str]
    says: tuple[str, ...]
    deadline: int = _DEADLINE
    elsewhere: frozenset[str] = frozenset()

    @property
    def hangs(self) -> bool:
        return self.deadline != _DEADLINE


@dataclass(frozen=True)
class Program:
    """One file of the corpus."""

    path: Path
    about: str
    truth: Truth

    @property
    def name(self) -> str:
        return self.path.stem


class BadTruth(ValueError):
    """A docstring that does not say what is true, or not in the form of ``Truth``."""


_KEYS = {"ranks", "guilty", "status", "kind", "says", "deadline", "elsewhere"}


def read_program(path: Path) -> Program:
    """Raises ``BadTruth``."""
    about, _, lines = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")
    given = dict(line.split(": ", 1) for line in lines.splitlines() if ": " in line)
    if not about or len(given) != len(lines.splitlines()) or given.keys() - _KEYS:
        raise BadTruth(f"{path.name}: the docstring is a paragraph and lines of {', '.join(sorted(_KEYS))}")
    if missing := {"ranks", "guilty", "status"} - given.keys():
        raise BadTruth(f"{path.name}: no {', '.join(sorted(missing))}")

    def words(key: str, separator: str = ",") -> list[str]:
        return [word.strip() for word in given.get(key, "").split(separator) if word.strip()]

    guilty = words("guilty")
    truth = Truth(
        ranks=int(given["ranks"]),
        guilty=frozenset(int(word) for word in guilty if word not in ("none", "unknowable")),
        unknowable="none" in guilty or "unknowable" in guilty,
        status=frozenset(words("status")),
        kind=frozenset(words("kind")),
        says=tuple(words("says", "|")),
        deadline=int(given.get("deadline", _DEADLINE)),
        elsewhere=frozenset(words("elsewhere")),
    )
    if not (truth.guilty or truth.unknowable):
        raise BadTruth(f"{path.name}: guilty is a list of ranks, none, or unknowable")
    if not truth.guilty <= set(range(truth.ranks)):
        raise BadTruth(f"{path.name}: has {truth.ranks} ranks, so {given['guilty']} cannot be guilty")
    if truth.status != {"ok"} and not (truth.says and truth.kind):
        raise BadTruth(f"{path.name}: no kind, or nothing to say")
    return Program(path, " ".join(about.split()), truth)


def programs(names: Sequence[str] = (), folder: Path = CORPUS) -> list[Program]:
    """All, or those; raises ``BadTruth``, and ``KeyError`` for a name that is none."""
    found = {path.stem: path for path in sorted(folder.glob("*.py"))}
    return [read_program(found[name]) for name in names or found]


# Launchers.


def _by_nproc(program: Program) -> list[str]:
    return ["--aorta-command", f"python {program.path.name}", "--aorta-nproc", str(program.truth.ranks)]


def _by_torchrun(program: Program) -> list[str]:
    return [
        "--aorta-command",
        f"torchrun --standalone --nproc-per-node {program.truth.ranks} {program.path.name}",
    ]


def _by_class(program: Program) -> list[str]:
    config = ["--aorta-config", f"script={program.path.name}", "--aorta-nproc", str(program.truth.ranks)]
    return ["script_workload.py::Script", *config]


def _by_spawn(program: Program) -> list[str]:
    return ["--aorta-command", f"python spawn_ranks.py {program.truth.ranks} {program.path.name}"]


def _by_mpirun(program: Program) -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = f"mpirun --allow-run-as-root --oversubscribe -n {program.truth.ranks}"
    return ["--aorta-command", f"{ranks} python mpi_rank.py {port} {program.path.name}"]


LAUNCHERS: Mapping[str, Callable[[Program], list[str]]] = {
    "auto": _by_class,
    "nproc": _by_nproc,
    "torchrun": _by_torchrun,
    "mpirun": _by_mpirun,
    "spawn": _by_spawn,
}


def obstacle(launcher: str) -> str | None:
    """Why nothing can run under it."""
    return "mpirun is not installed" if launcher == "mpirun" and shutil.which("mpirun") is None else None


# Trials.


@dataclass(frozen=True)
class Judged:
    """One trial, and how good its record is."""

    program: str
    launcher: str
    grade: Grade
    #: Why it is wrong, or what a right one does not say.
    why: str = ""
    contradiction: str = ""
    named: int | None = None
    guilty: list[int] = field(default_factory=list)
    status: str = ""
    kind: str | None = None
    confidence: str | None = None
    evidence: str | None = None
    message: str = ""
    file: str = ""


def grade(program: Program, launcher: str, record: Mapping[str, Any], file: str = "") -> Judged:
    """Compare a trial's record with the truth."""
    truth, failure = program.truth, record["failure"] or {}
    status, named, message = record["exit_status"], failure.get("rank"), failure.get("message") or ""
    blamed = sorted(rank["rank"] for rank in record["ranks"] or () if rank["blame"] == "cause")
    confidence, kind = failure.get("confidence"), failure.get("kind")
    got: Grade = "right"
    why: list[str] = []
    if status not in truth.status:
        got = "wrong"
        why.append(f"is {status}, not {' or '.join(sorted(truth.status))}")
    if named is not None and named not in truth.guilty:
        got = "wrong"
        why.append(f"names rank {named}, not {_ranks(truth.guilty)}")
    elif named is None and not truth.unknowable and got == "right":
        got = "unknown"
    if got == "wrong" and named is not None and confidence == "certain":
        got = "wrong and certain"
    if got in ("right", "unknown") and truth.status != {"ok"}:
        if kind not in truth.kind:
            why.append(f"kind {kind}, not {' or '.join(sorted(truth.kind))}")
        first = message.partition("\n")[0].lower()
        if not any(words.lower() in first for words in truth.says):
            why.append(f"does not say {' or '.join(map(repr, truth.says))}")
    contradiction = ""
    if blamed != ([] if named is None else [named]):
        contradiction = f"names {'no rank' if named is None else f'rank {named}'}, but blames {_ranks(blamed)}"
    return Judged(
        *(program.name, launcher, got, "; ".join(why), contradiction, named, sorted(truth.guilty), status),
        *(kind, confidence, failure.get("evidence"), message, file),
    )


def _ranks(ranks: Sequence[int] | frozenset[int]) -> str:
    return f"rank {' or '.join(map(str, sorted(ranks)))}" if ranks else "none"


def _heed_interrupts() -> None:
    """A shell has them ignored in what it starts by ``&``, and so in all that follows."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Runs:
    """Runs programs in a folder of its own, and leaves the records of those that are not right there."""

    def __init__(self, folder: Path, trials: int, slots: int = 1, slower: float = 1) -> None:
        self.folder, self.trials, self.slots, self.slower = folder, trials, slots, slower
        self.environ = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}

    def judge(self, program: Program, launcher: str) -> list[Judged]:
        """Each trial of the program under that launcher. Raises ``RuntimeError`` where pytest gives no records."""
        folder = Path(tempfile.mkdtemp(prefix=f"{program.name}-{launcher}-", dir=self.folder))
        shutil.copy(program.path, folder)
        for subject in ("script_workload.py", "spawn_ranks.py", "mpi_rank.py"):
            shutil.copy(_SUBJECTS / subject, folder)
        deadline = round(program.truth.deadline * self.slower)
        command = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"]
        command += [*LAUNCHERS[launcher](program), "--aorta-trials", str(self.trials), "--aorta-timeout", str(deadline)]
        command += ["--aorta-slots", str(self.slots)] if self.slots > 1 else []
        with (folder / "pytest.log").open("w") as log:
            log.write(shlex.join(command) + "\n")
            log.flush()
            patience = (deadline + 60) * self.trials + 120
            subprocess.run(
                command,
                cwd=folder,
                env=self.environ,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                preexec_fn=_heed_interrupts,
                timeout=patience,
                check=False,
            )
        files = sorted((folder / "results").glob("*/trial_*.json"))
        if len(files) != self.trials:
            raise RuntimeError(f"{len(files)} records of {self.trials} trials: see {folder / 'pytest.log'}")
        judged = [grade(program, launcher, json.loads(file.read_text()), str(file)) for file in files]
        if all(each.grade == "right" and not each.why and not each.contradiction for each in judged):
            shutil.rmtree(folder)
        return judged


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Processes that take all the time that they get."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


# Tables.


def table(judged: Sequence[Judged]) -> str:
    """A line per launcher, and one for all; parts of all trials in percent."""
    heads = ["launcher", "trials", *GRADES, "unsaid", "contradict"]
    rows = []
    launchers = list(dict.fromkeys(each.launcher for each in judged))
    for launcher in [*launchers, "all"]:
        mine = [each for each in judged if launcher in (each.launcher, "all")]
        counts = Counter(each.grade for each in mine)
        cells = [f"{counts[each]} ({counts[each] / len(mine):.0%})" for each in GRADES]
        unsaid = sum(bool(each.why) for each in mine if each.grade in ("right", "unknown"))
        rows.append([launcher, str(len(mine)), *cells, str(unsaid), str(sum(bool(it.contradiction) for it in mine))])
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [heads, *rows]
    )


def details(judged: Sequence[Judged]) -> str:
    """All that is not right, the worst first, with what was printed."""
    lines = []
    for grade in reversed(GRADES):
        for each in judged:
            if each.grade != grade or (grade == "right" and not each.why and not each.contradiction):
                continue
            reasons = "; ".join(filter(None, (each.why, each.contradiction)))
            lines.append(f"{each.grade}: {each.program}, {each.launcher}: {reasons or 'names no rank'}")
            first = each.message.partition("\n")[0]
            lines.append(f"    says ({each.status}, {each.kind}, {each.confidence}): {first[:600]}")
            if each.evidence:
                lines.append(f"    because: {each.evidence}")
            lines.append(f"    {each.file}")
    return "\n".join(lines)


def main() -> int:
    """Run what the command line asks for; 1 if any trial is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rank_corpus", description=__doc__)
    parser.add_argument("--launcher", nargs="+", choices=LAUNCHERS, default=list(LAUNCHERS), help="default: all")
    parser.add_argument("--trials", type=int, default=1, metavar="N", help="of each program (default 1)")
    parser.add_argument("--slots", type=int, default=1, metavar="N", help="trials at a time (default 1)")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="beside as many busy loops (default 0)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="programs (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each judged trial there, as it comes")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="records of what is not right (default: a new folder)")
    options = parser.parse_args()
    try:
        chosen = programs(options.only)
    except KeyError as unknown:
        parser.error(f"--only {unknown}: the programs are {', '.join(each.name for each in programs())}")
    folder = options.keep or Path(tempfile.mkdtemp(prefix="rank-corpus-"))
    folder.mkdir(parents=True, exist_ok=True)
    runs = Runs(folder.resolve(), options.trials, options.slots, _SLOWER if options.busy or options.slots > 1 else 1)
    judged: list[Judged] = []
    broken: list[str] = []
    with busy_loops(options.busy):
        for launcher in options.launcher:
            if (reason := obstacle(launcher)) is not None:
                print(f"{launcher}: skipped, because {reason}", flush=True)
                continue
            for program in chosen:
                if launcher in program.truth.elsewhere:
                    continue
                begun = time.monotonic()
                try:
                    found = runs.judge(program, launcher)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    broken.append(f"{program.name}, {launcher}: {error}")
                    print(f"{launcher:9} {program.name:28} no records: {error}", flush=True)
                    continue
                judged += found
                counts = Counter(each.grade for each in found)
                text = ", ".join(f"{counts[each]} {each}" for each in GRADES if counts[each])
                more = [each.why or each.contradiction for each in found if each.why or each.contradiction]
                text += f" ({more[0]})" if more else ""
                print(f"{launcher:9} {program.name:28} {time.monotonic() - begun:5.1f} s  {text}", flush=True)
                if options.json is not None:
                    options.json.write_text(json.dumps([asdict(each) for each in judged], indent=1) + "\n")
    if judged:
        print(f"\n{details(judged)}\n\n{table(judged)}")
    print(*broken, sep="\n")
    print(f"records: {folder}")
    return 1 if broken or any(each.grade.startswith("wrong") for each in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
