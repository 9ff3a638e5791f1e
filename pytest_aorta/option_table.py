"""The options of pytest-aorta, in their three spellings: command line, environment variable, ini file.

Imports nothing heavy, and not pytest: the plugin reads this at every start, and ``pytest-aorta list options`` shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pytest_aorta import option_values as valid


class Option(NamedTuple):  # faster to make than a dataclass, and pytest waits for it at every start
    """One option in its three spellings.

    ``repeat`` options take several values: repeated on the command line, lines in an ini file, ``;`` in a variable
    (or what the regular expression ``separator`` matches). ``default``: as it is typed; empty where there is none, or
    where ``help`` says what it depends on. ``bare``: the value of one that may stand without one.
    """

    name: str
    parse: Callable[[str], Any]
    metavar: str
    help: str
    repeat: bool = False
    separator: str = ";"
    default: str = ""
    bare: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether it stands without a value on the command line."""
        return not self.metavar

    @property
    def flag(self) -> str:
        """Spelling on the command line."""
        return f"--aorta-{self.name}"

    @property
    def ini(self) -> str:
        """Spelling in an ini file, and the destination on the command line."""
        return f"aorta_{self.name.replace('-', '_')}"

    @property
    def variable(self) -> str:
        """Spelling in the environment."""
        return f"PYTEST_{self.ini.upper()}"

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


def _gate(text: str) -> Any:
    """A condition on the table; what reads it is needed only where there is one."""
    from pytest_aorta.triage.gates import parse_gate

    return parse_gate(text)


def _condition(text: str) -> Any:
    """A condition on trials, likewise."""
    from pytest_aorta.workflow.conditions import parse_condition

    return parse_condition(text)


OPTIONS = (
    Option("workload", valid.name, "NAME", "run this registered workload; repeat for several", repeat=True),
    Option(
        "command",
        valid.command,
        "CMD",
        "run this command as a workload, such as 'python train.py'; repeat for several",
        repeat=True,
        separator="\n",
    ),
    Option(
        "fail-on",
        valid.regex,
        "REGEX",
        "a trial of a command fails when a line of its output matches; repeat",
        repeat=True,
        separator="\n",
    ),
    Option(
        "pass-on",
        valid.regex,
        "REGEX",
        "a trial of a command passes when a line matches, and fails when none does; repeat",
        repeat=True,
        separator="\n",
    ),
    Option(
        "metric",
        valid.metric,
        "REGEX",
        "named groups are metrics of a command, such as 'step (?P<step>\\d+) loss (?P<loss>\\S+)'; repeat",
        repeat=True,
        separator="\n",
    ),
    Option("fail-on-nonfinite", valid.switch, "", "a trial of a command fails when a metric is NaN or infinite"),
    Option("trials", valid.positive_int, "N", "trials per cell", default="1"),
    Option(
        "environment", valid.name, "NAME", "registered environment; repeat for an axis", repeat=True, default="local"
    ),
    Option("mitigations", valid.names, "A,B", "one mitigation set; repeat for an axis", repeat=True, default="none"),
    Option(
        "extra-env",
        valid.pairs,
        "K=V",
        "variables on top of all mitigations; K=V[,K=V], repeat",
        repeat=True,
        separator=f";{valid.NEXT_PAIR}",
    ),
    Option("steps", valid.positive_int, "N", "number of steps, for workloads that have this option"),
    Option("config", valid.key_value, "KEY=VALUE", "an option of the workload; repeat", repeat=True),
    Option("collect", valid.names, "A,B", "collectors: rocprof, numerics, amd_log"),
    Option("results-dir", valid.name, "DIR", "where results go", default="results"),
    Option("resume", valid.switch, "", "run only the trials that have no result of this very request yet"),
    Option(
        "history", valid.history, "N", "earlier records that are kept of each trial: a number, or all", default="10"
    ),
    Option("timeout", valid.seconds, "SEC", "deadline of a trial, from constructor to exit, and of its import"),
    Option(
        "stall-timeout", valid.seconds, "SEC", "end a trial that reports no progress() for so long in setup() or run()"
    ),
    Option("grace", valid.grace, "SEC", "between SIGTERM and SIGKILL for a trial that has to end", default="5"),
    Option("memory", valid.size, "SIZE", "memory that each process of a trial may allocate, such as 8G"),
    Option("log-limit", valid.size, "SIZE", "of a longer log, only head and tail are kept", default="64M"),
    Option(
        "isolation",
        valid.isolation,
        "HOW",
        "fork: a fresh fork of a prepared process; spawn: a fresh interpreter per trial; "
        "none: in this process, for --pdb",
        default="fork",
    ),
    Option(
        "preload",
        valid.preload,
        "HOW",
        "imported once for all trials of a cell: auto: what its first trial imports from installed packages; "
        "none; or modules such as torch,numpy, before the workload",
        default="auto",
    ),
    Option("slots", valid.slots, "N", "trials at a time in one pytest process: a number, or auto", default="1"),
    Option("own-cores", valid.switch, "", "give trials that run side by side cores of their own, and no more threads"),
    Option("devices", valid.devices, "LIST", "GPUs to lease to trials, such as 0-3; none hides all"),
    Option(
        "host",
        valid.name,
        "SPEC",
        "run trials on this host: popen, ssh=..., socket=... as xdist's --tx; repeat",
        repeat=True,
    ),
    Option("nproc", valid.positive_int, "N", "ranks of a distributed workload (default: its minimum)"),
    Option(
        "launcher",
        valid.launcher,
        "HOW",
        "who starts the ranks: auto, elastic, torchrun, external (pytest itself is a rank)",
        default="auto",
    ),
    Option(
        "elastic",
        valid.elastic_option,
        "KEY=VALUE",
        "an option of the agent that starts the ranks, such as max_restarts=1; repeat",
        repeat=True,
    ),
    Option("seed", valid.whole, "N", "random generators of trial i start equally in every cell, and in every such run"),
    Option("replay", valid.trial_file, "FILE", "run the trial of this file again; of a folder, all", repeat=True),
    Option(
        "order",
        valid.order,
        "HOW",
        "interleaved over cells, grouped by cell, random",
        default="interleaved",
    ),
    Option("shard", valid.share, "I/N", "run part I of N: of each cell every N-th trial; all N parts are the plan"),
    Option(
        "durations", valid.file, "FILE", "what --aorta-shard is balanced by: from pytest-aorta ci-matrix --durations"
    ),
    Option(
        "where",
        _condition,
        "CONDITION",
        "only trials that meet it, such as /config/lr<0.1 or /environment==local; repeat",
        repeat=True,
    ),
    Option(
        "baseline",
        valid.name,
        "CELL",
        "compare with this cell, such as local-none, or mitigation set (default: the first without mitigations)",
    ),
    Option("margin", valid.margin, "P", "differences of the failure rate that are no effect", default="0.1"),
    Option("report", valid.file, "FILE", "write one HTML file about all trials in the results directory at the end"),
    Option("until-decided", valid.switch, "", "skip the remaining trials of a cell once its verdict is certain"),
    Option("duration", valid.duration, "TIME", "rounds over all cells until the time is over, such as 8h or 1h30m"),
    Option(
        "gate",
        _gate,
        "EXPR",
        "what decides the exit status, such as 'failure_rate<=0.02' or 'verdict(omp_1)==fixes'; repeat",
        repeat=True,
    ),
    Option(
        "minimize", valid.names, "A,B", "find the smallest part of this mitigation set's variables that still fixes"
    ),
    Option("max-trials", valid.positive_int, "N", "all trials of --aorta-minimize together", default="2000"),
    Option(
        "registry-file", valid.name, "FILE", "JSON file with more mitigations and environments; repeat", repeat=True
    ),
    Option(
        "submit",
        valid.cluster,
        "CLUSTER",
        "submit recipes as jobs instead of running them here: to this cluster, or the one that this host is part of; "
        "write --aorta-submit=CLUSTER",
        bare="auto",
    ),
    Option("dry-run", valid.switch, "", "print the scripts of --aorta-submit, and submit nothing"),
    Option("max-jobs", valid.positive_int, "N", "of --aorta-submit: submit no more than so many"),
    Option("yes", valid.switch, "", "of --aorta-submit: do not ask whether to submit"),
)
