"""Commands among the workloads of a selection: what they are called, which options they get, and their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_aorta.launch.launch_mode import COMMAND_RANKS_TARGET
from pytest_aorta.registry.types import BUILTIN_SOURCE, WorkloadEntry
from pytest_aorta.settings import RequestError
from pytest_aorta.trials.command_line import COMMAND_TARGET, distinct_names, words_of
from pytest_aorta.trials.elastic_options import DEFAULTS
from pytest_aorta.trials.execution import Execution
from pytest_aorta.trials.output_rules import OutputRules


class CommandError(RequestError):
    """A command that cannot be run as asked for."""


def command_entries(commands: Sequence[str]) -> list[WorkloadEntry]:
    """One workload per command."""
    names = distinct_names([words_of(command) for command in commands])
    return [
        WorkloadEntry(name, COMMAND_TARGET, BUILTIN_SOURCE, {"command": command})
        for name, command in zip(names, commands, strict=True)
    ]


def completed(entry: WorkloadEntry, rules: OutputRules, execution: Execution) -> WorkloadEntry:
    """The entry of a command with what is looked for in its output, and with ranks where they are asked for.

    Raises:
        CommandError: an option that its ranks cannot have.
    """
    if entry.target != COMMAND_TARGET:
        return entry
    if execution.nproc is not None:
        _check_ranks(entry.name, execution)
    target = COMMAND_TARGET if execution.nproc is None else COMMAND_RANKS_TARGET
    return replace(entry, target=target, options={**entry.options, **rules.options()})


def _check_ranks(name: str, execution: Execution) -> None:
    """Refuse what torchrun does not do for the ranks of a command."""
    if execution.isolation == "none":
        raise CommandError(f"the ranks of {name} are processes of their own; use --aorta-isolation fork or spawn")
    if execution.launcher not in ("auto", "torchrun"):
        raise CommandError(f"the ranks of {name} are started by torchrun; --aorta-launcher {execution.launcher} cannot")
    defaults = DEFAULTS.to_plain()
    given = [option for option, value in execution.elastic.to_plain().items() if value != defaults[option]]
    refused = [option for option in given if option != "max_restarts"]
    if refused:
        raise CommandError(f"--aorta-elastic {refused[0]}: the ranks of {name}, a command, take max_restarts only")
