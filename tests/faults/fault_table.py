"""What has to come of every fault: the table of docs/faults.md.

A fault in ``setup()`` says nothing about the workload's bug (``infrastructure_failed``), one in ``run()`` is the bug
(``workload_failed``), and one in ``cleanup()`` leaves the result that is there already. A hang is a ``timeout``, in
``cleanup()`` one of a trial that is ok.
"""

from __future__ import annotations

from dataclasses import dataclass

PHASES = ("setup", "run", "cleanup")
_STATUS = {"setup": "infrastructure_failed", "run": "workload_failed", "cleanup": "ok"}


@dataclass(frozen=True)
class Fault:
    """One way to misbehave, a function of ``fault_actions``.

    Attributes:
        name: of the function.
        means: what the row of the table says.
        kind: of the failure; ``None`` when the trial does not fail.
        signal: of the failure.
        phases: where it makes sense.
        note: what the entry in ``failure_details`` says that it leaves.
        ranks: whether it is tried on one of two ranks, too.
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
        """Whether it is ended by a limit."""
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
    """The table for readers."""
    lines = ["| fault | in `setup()` | in `run()` | in `cleanup()` |", "|---|---|---|---|"]
    for fault in FAULTS:
        words = [Row(fault, phase).words if phase in fault.phases else "" for phase in PHASES]
        lines.append(f"| {fault.means} | {' | '.join(words)} |")
    return "\n".join(lines)
