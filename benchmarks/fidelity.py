"""``python -m benchmarks.fidelity``: does a trial fail as often as a fresh process does?

Small programs with real faults, each run as plain processes and through the default of pytest-aorta, in the same kind
of folder with the same variables. A run fails by an exit code, a signal or the deadline. The rates of each pair are
compared by Fisher's exact test, at 1 % after Holm's correction.

Trials of a class that share a start are no independent draws, so the start is the unit: of each start, one trial that
is drawn at random is compared. Its chance to fail is a fresh process's, if trials are as random as that, and starts are
independent. Only the last trial of a start ends as an interpreter does, so of faults at exit the last one is compared.
A class that imports nothing large has a start for each trial. A class runs beside modules of this package: what depends
on the state of the heap is compared as a command only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import fisher_exact

_LEVEL = 0.01

#: Trials in a cell where several share a start: enough for starts of several, and for processes of their own.
_CELL = 24

#: Variables of a launcher or of a run of pytest around this one.
_FOREIGN = re.compile(r"PYTEST|AORTA|TORCHELASTIC|PYTHONHASHSEED|PYTHONPATH|((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$)")

#: Ends a process in which a thread is held by a static object: ``std::terminate``; or waits for it for ever. Adds
#: numbers in the order in which threads come to it.
_NATIVE = r"""
#include <random>
#include <thread>
#include <unistd.h>
static std::thread *held = nullptr;
static bool joins = false;
struct Keeper { ~Keeper() { if (held && joins) held->join(); delete held; } } keeper;
extern "C" void hold(int join) { joins = join; held = new std::thread([] { for (;;) pause(); }); }
extern "C" float total(const float *rows, int count) {
    float sum = 0;
    #pragma omp parallel for num_threads(4) schedule(static) reduction(+ : sum)
    for (int i = 0; i < count; ++i) { usleep(std::random_device{}() % 3000); sum += rows[i]; }  // rows of uneven length
    return sum;
}
"""

_HALF = "import time, random; chance = random.Random(time.time_ns()).random() < 0.5\n"


_CACHE = (
    "import os, tempfile\nfolder = os.environ.get('TORCHINDUCTOR_CACHE_DIR') or tempfile.gettempdir()\n"
    "os.makedirs(folder, exist_ok=True); path = os.path.join(folder, 'kernel.bin')\n"
    "first = not os.path.exists(path); open(path, 'w').close()\n"
)


@dataclass(frozen=True)
class Fault:
    """A program that fails now and then.

    ``body``: ends with ``failed`` set, or fails by itself. ``at_import``: of a class, what runs at its import.
    ``forms``: ``command``, ``class``, ``class at exit``, or ``ranks``: two under torchrun, and a class under ``auto``.
    ``deadline`` in seconds; ``share``: of the runs that are asked for. ``environ``: more variables, on both sides.
    """

    body: str
    at_import: str = ""
    forms: tuple[str, ...] = ("command",)
    deadline: float = 20.0
    share: float = 1.0
    needs_library: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def shares_starts(self) -> bool:
        """Whether its import is so slow that trials of a class come from one start."""
        return "import torch" in self.body


_BOTH = ("command", "class")
_ENDS = ("command", "class at exit")

FAULTS = {
    "order of a set": Fault('failed = list({"left", "right"})[0] == "left"', forms=_BOTH),
    "hash of a text": Fault('failed = hash("x") % 2', forms=_BOTH),
    "sets through json": Fault('import json; failed = json.dumps(list({"a", "b"}))[2] == "a"', forms=_BOTH),
    "a bit of an address of mmap": Fault(
        "import ctypes, mmap; m = mmap.mmap(-1, 4096)\n"
        "failed = ctypes.addressof(ctypes.c_char.from_buffer(m)) >> 13 & 1",
        forms=_BOTH,
    ),
    "Random() made at import": Fault("failed = R.random() < 0.5", "import random; R = random.Random()", _BOTH),
    "a draw at import": Fault("failed = D < 0.5", "import random; D = random.random()", _BOTH),
    "time of day at import": Fault("failed = T % 2", "import time; T = time.time_ns() // 1000", _BOTH),
    "order of objects by address": Fault(
        "class A: pass\nitems = [A() for _ in range(40)]; keep = items[::3]; del items\n"
        "failed = id(A()) > id(keep[-1])",
    ),
    "a race of two threads": Fault(
        "import threading, time, random\nn = [0]\n"
        "def add():\n    v = n[0]; time.sleep(random.random() * 0.004); n[0] = v + 1\n"
        "t = threading.Thread(target=add); t.start(); time.sleep(0.002); add(); t.join(); failed = n[0] != 2",
        forms=_BOTH,
    ),
    "parity of the pid": Fault("import os; failed = os.getpid() % 2", forms=_BOTH),
    "the first process of a folder": Fault(
        "import os\nfailed = not os.path.exists('made')\nopen('made', 'w').close()", forms=_BOTH
    ),
    "first use of a cache": Fault(f"{_HALF}{_CACHE}failed = first and chance", forms=_BOTH),
    "first use of a cache that all have": Fault(
        f"{_CACHE}failed = first", forms=_BOTH, environ={"TORCHINDUCTOR_CACHE_DIR": "kernels"}
    ),
    "a handler of atexit that raises": Fault("import atexit; atexit.register(lambda: 1 / 0); failed = 0"),
    "a handler of atexit that ends the process": Fault(
        f"{_HALF}import atexit, os\nif chance: atexit.register(os._exit, 7)\nfailed = 0", forms=_ENDS
    ),
    "a daemon thread that prints at exit": Fault(
        "import sys, threading\ndef say():\n    while True: sys.stdout.write('x' * 99)\n"
        "threading.Thread(target=say, daemon=True).start(); failed = 0",
        deadline=10.0,
        share=0.5,
    ),
    "a fork with a held lock": Fault(
        "import os, threading, time, random, warnings\nwarnings.simplefilter('ignore'); lock = threading.Lock()\n"
        "def hold():\n    while True:\n        with lock: time.sleep(random.random() * 0.004)\n"
        "        time.sleep(0.002)\n"
        "threading.Thread(target=hold, daemon=True).start(); time.sleep(0.01 + random.random() * 0.01)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    lock.acquire(); os._exit(0)\nfailed = os.waitpid(pid, 0)[1] != 0",
        deadline=2.0,
        share=0.2,
    ),
    "abort in a static destructor": Fault(
        f"{_HALF}import ctypes\nif chance: ctypes.CDLL(LIBRARY).hold(0)\nfailed = 0",
        forms=_ENDS,
        needs_library=True,
    ),
    "a static destructor that waits for ever": Fault(
        f"{_HALF}import ctypes\nif chance: ctypes.CDLL(LIBRARY).hold(1)\nfailed = 0",
        forms=_ENDS,
        deadline=3.0,
        share=0.15,
        needs_library=True,
    ),
    "torch.empty never written": Fault(
        "import torch\nwords = [w for n in range(2, 40) for w in torch.empty(n, dtype=torch.int64).tolist()]\n"
        "failed = sum(bin(w & (2**64 - 1)).count('1') for w in words) % 2",
        forms=_BOTH,
        share=0.15,
        deadline=60.0,
    ),
    "a set in a class that imports torch": Fault(
        'import torch; failed = list({"left", "right"})[0] == "left"', "import torch", ("class",), 60.0, 0.15
    ),
    "order of sums of OpenMP": Fault(
        "import ctypes; total = ctypes.CDLL(LIBRARY).total; total.restype = ctypes.c_float\n"
        "failed = total((ctypes.c_float * 4)(1e8, 3.3, -1e8, 7.7), 4) > 9",
        forms=_BOTH,
        needs_library=True,
    ),
    "ranks that walk a set": Fault(
        "import torch, torch.distributed as dist\n"
        "mine = torch.tensor([float(ord(list({'a', 'b', 'c'})[0]))]); all_of = [torch.zeros(1) for _ in range(2)]\n"
        "dist.all_gather(all_of, mine); failed = bool(all_of[0] != all_of[1])",
        forms=("ranks",),
        share=0.1,
    ),
}


@dataclass(frozen=True)
class Pair:
    """Whether each fresh process and each trial that is compared failed; ``trials``: as many ran in all."""

    fresh: list[bool]
    ours: list[bool]
    trials: int

    @property
    def p(self) -> float:
        table = np.array([[sum(each), len(each) - sum(each)] for each in (self.fresh, self.ours)])
        return float(fisher_exact(table).pvalue)


class Runs:
    """Runs one fault; each form and side has a folder of its own, so that what is left there is its own, too."""

    def __init__(self, fault: Fault, library: Path | None, python: str = sys.executable) -> None:
        self.fault, self.python = fault, python
        self._given = f"LIBRARY = {str(library)!r}\n" if fault.needs_library else ""
        self._folder = Path(tempfile.mkdtemp(prefix="fidelity-"))
        self._draws = random.Random(0)
        self._environ = {
            **{name: value for name, value in os.environ.items() if not _FOREIGN.match(name)},
            "PYTHONUNBUFFERED": "1",
            **fault.environ,
        }

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def pair(self, form: str, runs: int) -> Pair:
        """Fresh processes, and trials: of one cell, or where trials share starts, of as many as it takes."""
        fresh = self._fresh(runs, form)
        records: list[dict[str, Any]] = []
        compared: list[dict[str, Any]] = []
        while len(compared) < runs:
            size = _CELL if form != "command" and self.fault.shares_starts else runs
            cell = self._ours(size, form)
            records += cell
            compared += self._one_of_each_start(cell, at_exit=form == "class at exit")
        at_exit = form == "class at exit"
        failed = [
            record["exit_status"] != "ok" or (at_exit and record["failure"] is not None) for record in compared[:runs]
        ]
        return Pair(fresh, failed, len(records))

    def _one_of_each_start(self, records: list[dict[str, Any]], at_exit: bool) -> list[dict[str, Any]]:
        starts: dict[Any, list[dict[str, Any]]] = {}
        for number, record in enumerate(records):
            own = record.get("zygote") is None
            starts.setdefault(("own", number) if own else record["zygote"], []).append(record)
        if at_exit:
            return [max(trials, key=lambda record: record["started_at"]) for trials in starts.values()]
        return [self._draws.choice(trials) for trials in starts.values()]

    def _fresh(self, runs: int, form: str) -> list[bool]:
        """Plain processes, two at a time, whose output goes to files as trials' does."""
        folder = self._fill(f"{form} fresh")
        words = [self.python, "program.py"]
        if form == "ranks":
            words[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

        def fails(_: int) -> bool:
            private = tempfile.mkdtemp(dir=self._folder)
            environ = {**self._environ, "TMPDIR": private}
            with (
                open(Path(private, "output"), "wb") as output,
                subprocess.Popen(
                    words, cwd=folder, env=environ, stdout=output, stderr=output, start_new_session=True
                ) as process,
            ):
                try:
                    return process.wait(self.fault.deadline) != 0
                except subprocess.TimeoutExpired:
                    # Nobody has waited for the leader, so the group is still its own; torchrun's ranks follow it.
                    os.killpg(process.pid, signal.SIGTERM if form == "ranks" else signal.SIGKILL)
                    return True
                finally:
                    shutil.rmtree(private, ignore_errors=True)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(fails, range(runs)))

    def _ours(self, runs: int, form: str) -> list[dict[str, Any]]:
        """The records of one run of pytest, with its defaults."""
        folder = self._fill(f"{form} ours")
        subject = ["--aorta-command", f"{self.python} program.py"] if form == "command" else ["work.py"]
        words = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *subject, "--aorta-trials", str(runs)]
        words += ["--aorta-timeout", f"{self.fault.deadline:g}"]
        words += ["--aorta-nproc", "2"] if form == "ranks" else ["--aorta-slots", "2"]
        done = subprocess.run(words, cwd=folder, env=self._environ, capture_output=True, text=True, check=False)
        records = [json.loads(path.read_text()) for path in sorted(folder.glob("results/*/trial_*.json"))]
        if len(records) != runs:
            raise RuntimeError(f"{len(records)} records of {runs}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return records

    def _fill(self, name: str) -> Path:
        """A folder with the program, in which nothing has run."""
        folder = self._folder / name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "pytest.ini").write_text("[pytest]\n")
        drawn, join, ranks = "", "pass", "pass"
        if self.fault.at_import:  # of a package, which the program imports
            (folder / "drawn.py").write_text(f"{self.fault.at_import}\n")
            drawn = "from drawn import *\n"
        if "ranks" in self.fault.forms:
            join = "import torch.distributed as dist; dist.init_process_group('gloo')"
            ranks = "launch_mode, min_world_size = 'distributed', 2"
        (folder / "program.py").write_text(
            f"{self._given}{drawn}{join}\n{self.fault.body}\n"
            "print('step 1 loss 0.1')\nraise SystemExit(int(bool(failed)))\n"
        )
        body = "\n".join(f"        {line}" for line in self.fault.body.splitlines())
        (folder / "work.py").write_text(
            f"{self._given}{drawn}{'import torch' if self.fault.shares_starts else ''}\n\nclass Work:\n    {ranks}\n"
            f"    def __init__(self, config): pass\n    def setup(self):\n        {join}\n    def run(self):\n{body}\n"
            "        return {'passed': not failed}\n"
        )
        return folder


def build_library(folder: Path) -> Path | None:
    """``None`` without a compiler."""
    if shutil.which("g++") is None:
        return None
    source, library = folder / "native.cpp", folder / "libnative.so"
    source.write_text(_NATIVE)
    subprocess.run(["g++", "-shared", "-fPIC", "-pthread", "-fopenmp", "-o", library, source], check=True)
    return library


def differing(p_values: Sequence[float], level: float = _LEVEL) -> set[int]:
    """Positions of the p values that Holm's step-down procedure rejects (Holm 1979)."""
    found: set[int] = set()
    for rank, position in enumerate(sorted(range(len(p_values)), key=lambda position: p_values[position])):
        if p_values[position] >= level / (len(p_values) - rank):
            break
        found.add(position)
    return found


def main() -> int:
    """Run what the command line asks for, print the table; 1 where a rate differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, metavar="N", help="runs of each kind (default 200)")
    parser.add_argument("--only", action="append", metavar="TEXT", help="faults with this in their names; repeat")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: at least 1")
    chosen = [name for name in FAULTS if not options.only or any(text in name for text in options.only)]
    if not chosen:
        parser.error(f"--only: no fault has this in its name; there are {', '.join(FAULTS)}")
    rows: list[tuple[str, str, Pair]] = []
    with tempfile.TemporaryDirectory() as folder:
        library = build_library(Path(folder))
        for name in chosen:
            fault = FAULTS[name]
            if fault.needs_library and library is None:
                print(f"{name}: skipped, there is no g++", file=sys.stderr)
                continue
            runs = Runs(fault, library)
            try:
                for form in fault.forms:
                    pair = runs.pair(form, min(options.runs, max(10, round(options.runs * fault.share))))
                    rows.append((name, form, pair))
                    print(f"{name}, {form}: {_rates(pair)}, p {pair.p:.2g}", file=sys.stderr, flush=True)
            finally:
                runs.close()
    rejected = differing([pair.p for _, _, pair in rows])
    print("| fault | as | fresh processes fail | trials fail | p | |\n|---|---|---|---|---|---|")
    for position, (name, form, pair) in enumerate(rows):
        fresh, ours = _rates(pair).split(" / ")
        said = "DIFFERS" if position in rejected else "same"
        print(f"| {name} | {form} | {fresh} | {ours} | {pair.p:.2g} | {said} |")
    return int(bool(rejected))


def _rates(pair: Pair) -> str:
    ours = f"{sum(pair.ours)} of {len(pair.ours)}"
    if pair.trials > len(pair.ours):
        ours += f" (of {pair.trials} trials)"
    return f"{sum(pair.fresh)} of {len(pair.fresh)} / {ours}"


if __name__ == "__main__":
    sys.exit(main())
