"""The options of pytest-aorta, in their three spellings: command line, environment variable, ini file.

Imports nothing, and not pytest: the plugin reads this at every start, and ``pytest-aorta list options`` shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: The module of the readers that are given by their names alone.
_READERS = "pytest_aorta.option_values"


class Option:  # much faster to define than a dataclass or a named tuple, and pytest waits for it at every start
    """One option in its three spellings.

    ``repeat`` options take several values: repeated on the command line, lines in an ini file, ``;`` in a variable
    (or what the regular expression ``separator`` matches). ``default``: as it is typed; empty where there is none, or
    where ``help`` says what it depends on. ``bare``: the value of one that may stand without one.

    Attributes:
        flag: spelling on the command line.
        ini: spelling in an ini file, and the destination on the command line.
        variable: spelling in the environment.
    """

    __slots__ = (
        *("name", "metavar", "help", "repeat", "separator", "default", "bare", "flag", "ini", "variable"),
        "_reader",
    )

    def __init__(
        self,
        name: str,
        reader: str,
        metavar: str,
        help: str,
        *,
        repeat: bool = False,
        separator: str = ";",
        default: str = "",
        bare: str = "",
    ) -> None:
        self.name = name
        self._reader = reader
        self.metavar = metavar
        self.help = help
        self.repeat = repeat
        self.separator = separator
        self.default = default
        self.bare = bare
        self.flag = f"--aorta-{name}"
        self.ini = f"aorta_{name.replace('-', '_')}"
        self.variable = f"PYTEST_{self.ini.upper()}"

    def __repr__(self) -> str:
        return self.flag

    @property
    def parse(self) -> Callable[[str], Any]:
        """What makes a value of a text, or raises ``ValueError`` with what would be valid; imported only now."""
        from pytest_aorta.common.import_target import import_target

        found: Callable[[str], Any] = import_target(
            self._reader if ":" in self._reader else f"{_READERS}:{self._reader}"
        )
        return found

    @property
    def is_switch(self) -> bool:
        """Whether it stands without a value on the command line."""
        return not self.metavar

    @property
    def help_text(self) -> str:
        """As ``--help`` shows it."""
        return f"{self.help} (default {self.default})" if self.default else self.help

    @property
    def takes(self) -> str:
        """What is valid, in the words that refuse what is not."""
        try:
            self.parse("")
        except ValueError as error:
            return str(error)
        return "any text"


OPTIONS = (
    Option("workload", "name", "NAME", "run this registered workload; repeat for several", repeat=True),
    Option(
        "command",
        "command",
        "CMD",
        "run this command as a workload, such as 'python train.py'; repeat for several",
        repeat=True,
        separator="\n",
    ),
    Option(
        "fail-on",
        "regex",
        "REGEX",
        "a trial of a command fails when a line of its output matches; repeat",
        repeat=True,
        separator="\n",
    ),
    Option(
        "pass-on",
        "regex",
        "REGEX",
        "a trial of a command passes when a line matches, and fails when none does; repeat",
        repeat=True,
        separator="\n",
    ),
    Option(
        "metric",
        "metric",
        "REGEX",
        "named groups are metrics of a command, such as 'step (?P<step>\\d+) loss (?P<loss>\\S+)'; repeat",
        repeat=True,
        separator="\n",
    ),
    Option("fail-on-nonfinite", "switch", "", "a trial of a command fails when a metric is NaN or infinite"),
    Option("trials", "positive_int", "N", "trials per cell", default="1"),
    Option("environment", "name", "NAME", "registered environment; repeat for an axis", repeat=True, default="local"),
    Option("mitigations", "names", "A,B", "one mitigation set; repeat for an axis", repeat=True, default="none"),
    Option(
        "extra-env",
        "pairs",
        "K=V",
        "variables on top of all mitigations; K=V[,K=V], repeat",
        repeat=True,
        separator=r";(?=[A-Za-z_][A-Za-z0-9_]*=)",  # option_values.NEXT_PAIR
    ),
    Option("steps", "positive_int", "N", "number of steps, for workloads that have this option"),
    Option("config", "key_value", "KEY=VALUE", "an option of the workload; repeat", repeat=True),
    Option("collect", "names", "A,B", "collectors: rocprof, numerics, amd_log"),
    Option("results-dir", "name", "DIR", "where results go", default="results"),
    Option("resume", "switch", "", "run only the trials that have no result of this very request yet"),
    Option("history", "history", "N", "earlier records that are kept of each trial: a number, or all", default="10"),
    Option("timeout", "seconds", "SEC", "deadline of a trial, from constructor to exit, and of its import"),
    Option("stall-timeout", "seconds", "SEC", "end a trial that reports no progress() for so long in setup() or run()"),
    Option("grace", "grace", "SEC", "between SIGTERM and SIGKILL for a trial that has to end", default="5"),
    Option("memory", "size", "SIZE", "memory that each process of a trial may allocate, such as 8G"),
    Option("log-limit", "size", "SIZE", "of a longer log, only head and tail are kept", default="64M"),
    Option(
        "isolation",
        "isolation",
        "HOW",
        "fork: a fresh fork of a prepared process; spawn: a fresh interpreter per trial; "
        "none: in this process, for --pdb",
        default="fork",
    ),
    Option(
        "preload",
        "preload",
        "HOW",
        "imported once for all trials of a cell: auto: what its first trial imports from installed packages; "
        "none; or modules such as torch,numpy, before the workload",
        default="auto",
    ),
    Option("slots", "slots", "N", "trials at a time in one pytest process: a number, or auto", default="1"),
    Option("own-cores", "switch", "", "give trials that run side by side cores of their own, and no more threads"),
    Option("devices", "devices", "LIST", "GPUs to lease to trials, such as 0-3; none hides all"),
    Option(
        "host",
        "name",
        "SPEC",
        "run trials on this host: popen, ssh=..., socket=... as xdist's --tx; repeat",
        repeat=True,
    ),
    Option("nproc", "positive_int", "N", "ranks of a distributed workload (default: its minimum)"),
    Option(
        "launcher",
        "launcher",
        "HOW",
        "who starts the ranks: auto, elastic, torchrun, external (pytest itself is a rank)",
        default="auto",
    ),
    Option(
        "elastic",
        "elastic_option",
        "KEY=VALUE",
        "an option of the agent that starts the ranks, such as max_restarts=1; repeat",
        repeat=True,
    ),
    Option("seed", "whole", "N", "random generators of trial i start equally in every cell, and in every such run"),
    Option("replay", "trial_file", "FILE", "run the trial of this file again; of a folder, all", repeat=True),
    Option(
        "order",
        "order",
        "HOW",
        "interleaved over cells, grouped by cell, random",
        default="interleaved",
    ),
    Option("shard", "share", "I/N", "run part I of N: of each cell every N-th trial; all N parts are the plan"),
    Option("durations", "file", "FILE", "what --aorta-shard is balanced by: from pytest-aorta ci-matrix --durations"),
    Option(
        "where",
        "pytest_aorta.common.conditions:parse_condition",
        "CONDITION",
        "only trials that meet it, such as /config/lr<0.1 or /environment==local; repeat",
        repeat=True,
    ),
    Option(
        "baseline",
        "name",
        "CELL",
        "compare with this cell, such as local-none, or mitigation set (default: the first without mitigations)",
    ),
    Option("margin", "margin", "P", "differences of the failure rate that are no effect", default="0.1"),
    Option("report", "file", "FILE", "write one HTML file about all trials in the results directory at the end"),
    Option("until-decided", "switch", "", "skip the remaining trials of a cell once its verdict is certain"),
    Option("duration", "duration", "TIME", "rounds over all cells until the time is over, such as 8h or 1h30m"),
    Option(
        "gate",
        "pytest_aorta.triage.gates:parse_gate",
        "EXPR",
        "what decides the exit status, such as 'failure_rate<=0.02' or 'verdict(omp_1)==fixes'; repeat",
        repeat=True,
    ),
    Option("minimize", "names", "A,B", "find the smallest part of this mitigation set's variables that still fixes"),
    Option("max-trials", "positive_int", "N", "all trials of --aorta-minimize together", default="2000"),
    Option("registry-file", "name", "FILE", "JSON file with more mitigations and environments; repeat", repeat=True),
)
