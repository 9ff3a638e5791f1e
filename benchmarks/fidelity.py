"""``python -m benchmarks.fidelity``: does a trial fail as often as a fresh process does?

Small programs with real faults, each run as plain processes and through the default of pytest-aorta, in the same kind
of folder with the same variables. A run fails by an exit code, a signal or the deadline. The rates of each pair are
compared by Fisher's exact test, at 1 % after Holm's correction. Trials of a class that share a start are no independent
draws: of a class that imports torch, each pytest run has one trial. A class runs beside modules of this package: what
depends on the state of the heap is compared as a command only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import fisher_exact

_LEVEL = 0.01

#: Ends a process in which a thread is held by a static object: ``std::terminate``; or waits for it for ever.
_NATIVE = r"""
#include <thread>
#include <unistd.h>
static std::thread *held = nullptr;
static bool joins = false;
struct Keeper { ~Keeper() { if (held && joins) held->join(); delete held; } } keeper;
extern "C" void hold(int join) { joins = join; held = new std::thread([] { for (;;) pause(); }); }
"""

_HALF = "import time, random; chance = random.Random(time.time_ns()).random() < 0.5\n"


@dataclass(frozen=True)
class Fault:
    """A program that fails now and then.

    ``body``: ends with ``failed`` set, or fails by itself. ``at_import``: of a class, what runs at its import.
    ``forms``: ``command``, ``class``, or ``ranks``: of two ranks under torchrun, and of a class under ``auto``.
    ``deadline`` in seconds; ``share``: of the runs that are asked for.
    """

    body: str
    at_import: str = ""
    forms: tuple[str, ...] = ("command",)
    deadline: float = 20.0
    share: float = 1.0
    needs_library: bool = False


_BOTH = ("command", "class")

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
    "parity of the pid": Fault("import os; failed = os.getpid() % 2"),
    "the first process of a folder": Fault(
        f"{_HALF}import os\nfailed = not os.path.exists('made') and chance\nopen('made', 'w').close()",
    ),
    "first use of a cache": Fault(
        "import os, tempfile\nfolder = os.environ.get('TORCHINDUCTOR_CACHE_DIR') or tempfile.gettempdir()\n"
        "path = os.path.join(folder, 'kernel.bin'); first = not os.path.exists(path); open(path, 'w').close()\n"
        "import random, time; failed = first and random.Random(time.time_ns()).random() < 0.5",
    ),
    "a handler of atexit that raises": Fault("import atexit; atexit.register(lambda: 1 / 0); failed = 0"),
    "a handler of atexit that ends the process": Fault(
        f"{_HALF}import atexit, os\nif chance: atexit.register(os._exit, 7)\nfailed = 0"
    ),
    "a daemon thread that prints at exit": Fault(
        "import sys, threading\ndef say():\n    while True: sys.stdout.write('x' * 99)\n"
        "threading.Thread(target=say, daemon=True).start(); failed = 0",
        deadline=10.0,
        share=0.5,
    ),
    "a fork with a held lock": Fault(
        "import os, threading, time, random\nlock = threading.Lock()\n"
        "def hold():\n    while True:\n        with lock: time.sleep(random.random() * 0.004)\n"
        "        time.sleep(0.002)\n"
        "threading.Thread(target=hold, daemon=True).start(); time.sleep(0.01 + random.random() * 0.01)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    os._exit(0 if lock.acquire(timeout=0.2) else 1)\nfailed = os.waitpid(pid, 0)[1] != 0",
        share=0.5,
    ),
    "abort in a static destructor": Fault(
        f"{_HALF}import ctypes\nif chance: ctypes.CDLL(LIBRARY).hold(0)\nfailed = 0", needs_library=True
    ),
    "a static destructor that waits for ever": Fault(
        f"{_HALF}import ctypes\nif chance: ctypes.CDLL(LIBRARY).hold(1)\nfailed = 0",
        deadline=2.0,
        share=0.15,
        needs_library=True,
    ),
    "torch.empty never written": Fault(
        "import torch; failed = bool((torch.empty(33) != 0).any())", forms=_BOTH, share=0.15
    ),
    "order of sums of OpenMP": Fault(
        "import torch; torch.manual_seed(0); x = torch.randn(300_001)\n"
        "failed = int(x.sum().view(torch.int32)) & 1 != int(x.sum().view(torch.int32)) & 1",
        share=0.15,
    ),
    "ranks that walk a set": Fault(
        "import torch, torch.distributed as dist\n"
        "mine = torch.tensor([float(ord(list({'a', 'b', 'c'})[0]))]); all_of = [torch.zeros(1) for _ in range(2)]\n"
        "dist.all_gather(all_of, mine); failed = bool(all_of[0] != all_of[1])",
        forms=("ranks",),
        share=0.1,
    ),
}


class Runs:
    """Runs one fault in a folder of its own; each method gives for each run whether it failed."""

    def __init__(self, fault: Fault, library: Path | None, python: str = sys.executable) -> None:
        self.fault, self.python = fault, python
        self.folder = Path(tempfile.mkdtemp(prefix="fidelity-"))
        given = f"LIBRARY = {str(library)!r}\n" if fault.needs_library else ""
        package, program = "", f"{given}{fault.at_import}\n"
        if fault.at_import:  # of a package, which the program imports
            (self.folder / "drawn.py").write_text(fault.at_import)
            package, program = "from drawn import *\n", f"{given}from drawn import *\n"
        join = "import torch.distributed as dist; dist.init_process_group('gloo')\n" if "ranks" in fault.forms else ""
        (self.folder / "program.py").write_text(
            f"{program}{join}{fault.body}\nprint('step 1 loss 0.1')\nraise SystemExit(int(bool(failed)))\n"
        )
        body = "\n".join(f"        {line}" for line in fault.body.splitlines())
        head = "launch_mode, min_world_size = 'distributed', 2" if join else "pass"
        setup = "import torch.distributed as dist; dist.init_process_group('gloo')" if join else "pass"
        (self.folder / "work.py").write_text(
            f"{given}{package}\nclass Work:\n    {head}\n    def __init__(self, config): pass\n"
            f"    def setup(self):\n        {setup}\n    def run(self):\n{body}\n"
            "        return {'passed': not failed}\n"
        )

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def fresh(self, runs: int, words: list[str]) -> list[bool]:
        """Plain processes, one after the other: a folder and what is left in it are theirs as they are ours."""

        def fails(number: int) -> bool:
            private = tempfile.mkdtemp(dir=self.folder)
            environ = {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": private}
            try:
                done = subprocess.run(
                    words, cwd=self.folder, env=environ, capture_output=True, timeout=self.fault.deadline, check=False
                )
                return done.returncode != 0
            except subprocess.TimeoutExpired:
                return True
            finally:
                shutil.rmtree(private, ignore_errors=True)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(fails, range(runs)))

    def ours(self, runs: int, *options: str) -> list[bool]:
        """Trials of one run of pytest, whose defaults they have."""
        results = self.folder / "results"
        shutil.rmtree(results, ignore_errors=True)
        words = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "--aorta-trials", str(runs)]
        words += ["--aorta-timeout", f"{self.fault.deadline:g}", "--aorta-slots", "2"]
        subprocess.run(words, cwd=self.folder, capture_output=True, check=False)
        records = [json.loads(path.read_text()) for path in sorted(results.glob("*/trial_*.json"))]
        if len(records) != runs:
            raise RuntimeError(f"{len(records)} records of {runs} in {results}")
        return [record["exit_status"] != "ok" for record in records]

    def pairs(self, runs: int) -> dict[str, tuple[list[bool], list[bool]]]:
        """Of each form, the runs of fresh processes and of ours."""
        found: dict[str, tuple[list[bool], list[bool]]] = {}
        torch = "torch" in self.fault.body
        for form in self.fault.forms:
            if form == "command":
                found[form] = self.fresh(runs, [self.python, "program.py"]), []
                (self.folder / "made").unlink(missing_ok=True)
                found[form][1].extend(self.ours(runs, "--aorta-command", f"{self.python} program.py"))
            elif form == "class":
                found[form] = self.fresh(runs, [self.python, "program.py"]), []
                if torch:
                    for _ in range(runs):
                        found[form][1].append(self.ours(1, "work.py")[0])
                else:
                    found[form][1].extend(self.ours(runs, "work.py"))
            else:
                agent = [self.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
                found[form] = self.fresh(runs, [*agent, "program.py"]), []
                for _ in range(runs):
                    found[form][1].append(self.ours(1, "work.py")[0])
        return found


def build_library(folder: Path) -> Path | None:
    """``None`` without a compiler."""
    if shutil.which("g++") is None:
        return None
    source, library = folder / "native.cpp", folder / "libnative.so"
    source.write_text(_NATIVE)
    subprocess.run(["g++", "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
    return library


def main() -> int:
    """Run what the command line asks for, print the table; 1 where a rate differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, metavar="N", help="runs of each kind (default 200)")
    parser.add_argument("--only", action="append", metavar="TEXT", help="faults with this in their names; repeat")
    options = parser.parse_args()
    chosen = [name for name in FAULTS if not options.only or any(text in name for text in options.only)]
    rows: list[tuple[str, str, list[bool], list[bool], float]] = []
    with tempfile.TemporaryDirectory() as folder:
        library = build_library(Path(folder))
        for name in chosen:
            fault = FAULTS[name]
            if fault.needs_library and library is None:
                print(f"{name}: skipped, there is no g++", file=sys.stderr)
                continue
            runs = Runs(fault, library)
            try:
                for form, (fresh, ours) in runs.pairs(max(10, round(options.runs * fault.share))).items():
                    table = np.array([[sum(each), len(each) - sum(each)] for each in (fresh, ours)])
                    rows.append((name, form, fresh, ours, float(fisher_exact(table).pvalue)))
                    said = f"{sum(fresh)} of {len(fresh)} fresh, {sum(ours)} of {len(ours)} ours"
                    print(f"{name}, {form}: {said}, p {rows[-1][-1]:.2g}", file=sys.stderr)
            finally:
                runs.close()
    print("| fault | as | fresh processes fail | trials fail | p | |\n|---|---|---|---|---|---|")
    differing = set()
    for rank, row in enumerate(sorted(rows, key=lambda row: row[-1])):
        if row[-1] >= _LEVEL / (len(rows) - rank):
            break
        differing.add(row[:2])
    for name, form, fresh, ours, p in rows:
        said = "DIFFERS" if (name, form) in differing else "same"
        print(f"| {name} | {form} | {sum(fresh)} of {len(fresh)} | {sum(ours)} of {len(ours)} | {p:.2g} | {said} |")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
