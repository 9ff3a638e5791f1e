"""``python -m benchmarks.way_of_a_trial``: which functions, files and rooms of the package one trial passes.

One pytest run with one trial, traced with ``sys.setprofile`` in every process and thread: pytest, the zygote, the
trial, its ranks. Counted is what happens while pytest runs its items: the import of the workload, the trial, its
record, its reports. Importing modules, reading options, collecting and ending the session are not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

_SUBJECTS = Path(__file__).with_name("subjects")

_EMPTY = """
from pytest_aorta import Workload, WorkloadResult

class Empty(Workload):
    def setup(self):
        pass

    def run(self):
        return WorkloadResult(passed=True)
"""

_DYING = """
import os
from pytest_aorta import Workload, WorkloadResult

class Dying(Workload):
    launch_mode = "distributed"
    min_world_size = 2

    def setup(self):
        pass

    def run(self):
        if os.environ["RANK"] == "1":
            os._exit(3)
        return WorkloadResult(passed=True)
"""

#: Name -> source of the workload, most functions and files that its trial may pass.
CASES = {"empty": (_EMPTY, 400, 60), "dying": (_DYING, 550, 80)}


def main() -> int:
    """Trace what the command line asks for, print the counts; 1 where one is above its aim."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.way_of_a_trial", description=__doc__)
    parser.add_argument("case", nargs="*", help=f"of {', '.join(CASES)}; all if not given")
    parser.add_argument("-v", action="store_true", help="list the files, with their functions")
    options = parser.parse_args()
    met = [_report(name, options.v) for name in options.case or CASES]
    return int(not all(met))


def _report(name: str, details: bool) -> bool:
    source, most_functions, most_files = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        functions, chains = trace(source, Path(folder))
    files = Counter(file for file, _ in functions)
    rooms = Counter(file.split("/")[0] for file in files)
    met = len(functions) <= most_functions and len(files) <= most_files
    print(f"{name}: {len(functions)} functions (aim {most_functions}) in {len(files)} files (aim {most_files})")
    for room, count in rooms.most_common():
        inside = [function for file, function in functions if file.split("/")[0] == room]
        print(f"    {room:14} {len(inside):4} functions, {count:3} files")
    for chain in sorted(chains):
        print(f"    {chain}")
    if details:
        for file, count in sorted(files.items()):
            print(f"  {file} {count}: {', '.join(sorted(name for path, name in functions if path == file))}")
    return met


def trace(source: str, folder: Path) -> tuple[set[tuple[str, str]], set[str]]:
    """Run one trial of the only workload in ``source``; the functions passed, and the chains of rooms per process."""
    (folder / "way_workload.py").write_text(source)
    traces = folder / "traces"
    traces.mkdir()
    (traces / "part").write_bytes(b"\0")
    environ = {**os.environ, "WAY_TRACES": str(traces), "PYTHONPATH": f"{_SUBJECTS / 'way'}"}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "way_marks", "-p", "no:cacheprovider", "way_workload.py"],
        cwd=folder,
        env=environ,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    functions: set[tuple[str, str]] = set()
    chains: set[str] = set()
    for file in traces.glob("*.json"):
        found = json.loads(file.read_text())
        functions |= {(path, name) for path, name in found["functions"]}
        chains |= set(found["chains"])
    return functions, _longest(chains)


def _longest(chains: set[str]) -> set[str]:
    return {chain for chain in chains if not any(chain != other and other.startswith(chain) for other in chains)}


if __name__ == "__main__":
    sys.exit(main())
