"""Commands among the workloads of a selection: what they are called, which options they get, and their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_aorta.launch.launch_mode import COMMAND_RANKS_TARGET
from pytest_aorta.registry.types import BUILTIN_SOURCE, WorkloadEntry
from pytest_aorta.trials.command_line import COMMAND_TARGET, distinct_names, words_of
from pytest_aorta.trials.execution import Execution
from pytest_aorta.trials.output_rules import OutputRules


def command_entries(commands: Sequence[str]) -> list[WorkloadEntry]:
    """One workload per command."""
    names = distinct_names([words_of(command) for command in commands])
    return [
        WorkloadEntry(name, COMMAND_TARGET, BUILTIN_SOURCE, {"command": command})
        for name, command in zip(names, commands, strict=True)
    ]


def completed(entry: WorkloadEntry, rules: OutputRules, execution: Execution) -> WorkloadEntry:
    """The entry of a command with what is looked for in its output, and with ranks where they are asked for."""
    if entry.target != COMMAND_TARGET:
        return entry
    target = COMMAND_TARGET if execution.nproc is None else COMMAND_RANKS_TARGET
    return replace(entry, target=target, options={**entry.options, **rules.options()})
