"""Every fault, in every phase and mode: what is recorded is what the table of docs/reference/faults.md says.

A fault in ``setup()`` says nothing about the workload's bug (``infrastructure_failed``), one in ``run()`` is the bug
(``workload_failed``), and one in ``cleanup()`` leaves the result that is there already. A hang is a ``timeout``, in
``cleanup()`` one of a trial that is ok.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage

PHASES = ("setup", "run", "cleanup")
_STATUS = {"setup": "infrastructure_failed", "run": "workload_failed", "cleanup": "ok"}


@dataclass(frozen=True)
class Fault:
    """One way to misbehave: a function of ``faulty.py``, what it means, the failure, and where it makes sense.

    ``note``: what the entry in ``failure_details`` says that it leaves; ``ranks``: whether it is tried on one of two.
    """

    name: str
    means: str
    kind: str | None
    signal: str | None = None
    phases: tuple[str, ...] = PHASES
    note: str | None = None
    ranks: bool = True

    @property
    def hangs(self) -> bool:
        return self.kind == "timeout"


@dataclass(frozen=True)
class Row:
    """A fault in a phase, and what has to be recorded."""

    fault: Fault
    phase: str

    @property
    def expected(self) -> tuple[str, str | None, str | None]:
        """Exit status, phase and kind of the failure."""
        if self.fault.kind is None:
            return "ok", None, None
        status = "timeout" if self.fault.hangs and self.phase != "cleanup" else _STATUS[self.phase]
        return status, self.phase, self.fault.kind

    @property
    def words(self) -> str:
        """The expectation as a cell of the table."""
        status, _, kind = self.expected
        return status if kind is None else f"{status}, {kind}"


FAULTS = (
    Fault("segfault", "segmentation fault", "signal", "SIGSEGV"),
    Fault("stack_overflow_in_c", "stack overflow in C", "signal", "SIGSEGV"),
    Fault("abort", "`abort()`", "signal", "SIGABRT"),
    Fault("killed", "SIGKILL from outside", "signal", "SIGKILL"),
    Fault("exit_0", "`os._exit(0)`", "exit_code"),
    Fault("exit_3", "`os._exit(3)`", "exit_code"),
    Fault("sys_exit", "`sys.exit`", "exception"),
    Fault("raises", "exception", "exception"),
    Fault("raises_unpicklable", "exception whose arguments cannot be pickled", "exception"),
    Fault("raises_unspeakable", "exception whose `__str__` raises", "exception"),
    Fault("raises_base_exception", "`BaseException`", "exception"),
    Fault("raises_with_100_mb", "exception with a message of 100 MB", "exception", ranks=False),
    Fault("recursion", "endless recursion", "exception"),
    Fault("out_of_memory", "more memory than `--aorta-memory`", "exception"),
    Fault("prints_garbage_and_raises", "bytes that are no text, terminal commands, and an exception", "exception"),
    Fault("sleeps", "sleep", "timeout"),
    Fault("spins_with_the_gil", "endless loop in C that holds the GIL", "timeout", ranks=False),
    Fault("blocked_in_c", "blocked in a system call", "timeout"),
    Fault("blocked_in_c_with_the_gil", "blocked in a C call that holds the GIL", "timeout"),
    Fault("deadlock_that_ignores_sigterm", "deadlock, SIGTERM ignored", "timeout"),
    Fault("stopped", "SIGSTOP", "timeout"),
    Fault("thread_that_never_ends", "a thread that never ends", None, ranks=False),
    Fault("child_in_its_own_session", "a daemon is left behind", None, note="was left running, and ended"),
    Fault("fork_bomb", "300 processes are left behind", None, note="more were left running, and ended", ranks=False),
    Fault("floods_stdout", "more output than `aorta_log_limit`", None, note="bytes were cut"),
    Fault("closes_stdout", "stdout and stderr closed", None),
    Fault("returns_50_mb", "a result of 50 MB", None, phases=("run",), note="left out", ranks=False),
    Fault(
        "returns_what_json_cannot_hold",
        "a result unfit for JSON",
        None,
        phases=("run",),
        note="kept as text",
        ranks=False,
    ),
    Fault("returns_nothing", "no result", "result", phases=("run",), ranks=False),
)

ROWS = tuple(Row(fault, phase) for fault in FAULTS for phase in fault.phases)


def as_markdown() -> str:
    lines = ["| fault | in `setup()` | in `run()` | in `cleanup()` |", "|---|---|---|---|"]
    for fault in FAULTS:
        words = [Row(fault, phase).words if phase in fault.phases else "" for phase in PHASES]
        lines.append(f"| {fault.means} | {' | '.join(words)} |")
    return "\n".join(lines)


HANGS = [row for row in ROWS if row.fault.hangs]
OTHERS = [row for row in ROWS if not row.fault.hangs]

#: Run by hand: every change is tried with those of ``fork``, and of ranks that end in ``run()``; ranks that hang, and
#: other launchers, are in ``test_rank_fault_table.py``.
BY_HAND = pytest.mark.long

MODES = {
    "fork": ("--aorta-isolation", "fork"),
    "spawn": ("--aorta-isolation", "spawn"),
    "xdist": ("-n", "2"),
}

LIMITS = ("-o", "aorta_grace=0.5", "-o", "aorta_log_limit=1M")


def run(stage: Stage, workload: str, rows: Sequence[Row], *options: str) -> dict[Row, dict[str, Any]]:
    stage.copy(Path(__file__).with_name("faulty.py"))
    script = ".".join(f"{row.fault.name}-{row.phase}" for row in rows)
    options = ("--aorta-trials", str(len(rows)), "--aorta-config", f"script={script}", *LIMITS, *options)
    result = stage.run(f"faulty.py::{workload}", *options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert stage.left_running() == []
    assert stage.files() == sorted(f"{workload}/trial_{index}.json" for index in range(len(rows)))
    return {row: stage.trial(f"{workload}/trial_{index}.json") for index, row in enumerate(rows)}


def mistakes(found: dict[Row, dict[str, Any]], rank: int | None = None) -> list[str]:
    """Rows whose record is not what the table says."""
    wrong = []
    for row, trial in found.items():
        failure = trial["failure"]
        got = (trial["exit_status"], failure and failure["phase"], failure and failure["kind"])
        where = f"{row.fault.name} in {row.phase}"
        if got != row.expected:
            wrong.append(f"{where}: {got} instead of {row.expected}: {failure and failure['message'][:300]}")
            continue
        if failure is not None and failure["signal"] != row.fault.signal:
            wrong.append(f"{where}: signal {failure['signal']} instead of {row.fault.signal}")
        if failure is not None and failure["rank"] != rank:
            wrong.append(f"{where}: rank {failure['rank']} instead of {rank}: {failure['message'][:300]}")
        details = str(trial["result"]["failure_details"])
        if row.fault.note is not None and row.fault.note not in details:
            wrong.append(f"{where}: nothing says {row.fault.note!r}: {details[:300]}")
        if (failure is None or row.phase == "cleanup") and not trial["result"]["metrics"]:
            wrong.append(f"{where}: the result is lost")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fork", *(pytest.param(mode, marks=BY_HAND) for mode in ("spawn", "xdist"))])
def test_every_fault_that_ends_by_itself(stage: Stage, mode: str) -> None:
    slots = () if mode == "xdist" else ("--aorta-slots", "2")  # some wait for what they leave behind
    options = (*slots, "--aorta-timeout", "50", "--aorta-memory", "1G")
    assert mistakes(run(stage, "Faulty", OTHERS, *MODES[mode], *options)) == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fork", *(pytest.param(mode, marks=BY_HAND) for mode in ("spawn", "xdist"))])
def test_every_fault_that_hangs(stage: Stage, mode: str) -> None:
    # They do nothing, so many can wait for their deadlines at the same time.
    slots = () if mode == "xdist" else ("--aorta-slots", "9")
    found = run(stage, "Faulty", HANGS, *MODES[mode], *slots, "--aorta-timeout", "3")
    assert mistakes(found) == []
    for row, trial in found.items():
        if row.fault.name != "stopped":  # which could give its stack only by going on
            assert f"{row.fault.name}() at faulty.py line" in trial["failure"]["message"]
            assert trial["failure"]["stacks"] == f"trial_{list(found).index(row)}/stacks.log"


@pytest.mark.slow
@pytest.mark.parametrize("phase", [pytest.param(each, marks=BY_HAND if each != "run" else ()) for each in PHASES])
def test_every_fault_of_a_rank_that_ends_by_itself(stage: Stage, phase: str) -> None:
    rows = [row for row in OTHERS if row.fault.ranks and row.phase == phase]
    assert mistakes(run(stage, "FaultyRanks", rows, "--aorta-timeout", "50", "--aorta-memory", "4G"), rank=1) == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
def test_every_fault_of_a_rank_that_hangs(stage: Stage, phase: str) -> None:
    rows = [row for row in HANGS if row.fault.ranks and row.phase == phase]
    found = run(stage, "FaultyRanks", rows, "--aorta-slots", "3", "--aorta-timeout", "10")
    assert mistakes(found, rank=1) == []
    for row, trial in found.items():
        if row.phase == "run" and row.fault.name != "stopped":
            assert f"rank 1 is missing: {row.fault.name}() at faulty.py line" in trial["failure"]["message"]
            assert "rank 0: all_reduce in run() at faulty.py line" in trial["failure"]["message"]


def test_the_table_of_the_documentation_is_this_one() -> None:
    assert as_markdown() in (Path(__file__).parents[2] / "docs" / "reference" / "faults.md").read_text()
