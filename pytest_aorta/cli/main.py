"""The command line of ``pytest-aorta``: its subcommands, and how errors are shown."""

from __future__ import annotations

import gc
import inspect
import warnings
from importlib import import_module
from typing import Any

import click

from pytest_aorta._version import __version__
from pytest_aorta.common import log
from pytest_aorta.common.texts import printable
from pytest_aorta.settings import RequestError

#: Subcommands in the order of the help: the module, which is imported when the command is asked for, and what it does.
_COMMANDS = {
    "try": ("try_", "Run a command a few times, say what it does and how it fails, and find out what fixes it."),
    "check": ("check", "Is this machine, or another one, fit to be trusted? One row for each device."),
    "init": ("project", "Create a recipe (aorta.toml) and a workspace in DIR."),
    "status": ("project", "Show the progress of each action of a recipe."),
    "show": ("project", "Show directories, cells, trials, clusters, nodes, or what collectors found."),
    "why": ("project", "Explain the states of actions on directories, cells or trials (-: names from stdin)."),
    "scan": ("project", "Update the index from products, trial files and values on disk."),
    "clean": ("project", "Delete the workspace index (or parts of it). Results are kept."),
    "run": ("run", "Run the rest of a recipe here, with pytest."),
    "submit": ("submit", "Submit the rest of a recipe as jobs, group by group."),
    "explain": ("search", "Find the differences between two machines or runs that make it fail."),
    "amplify": ("search", "Find the condition that makes a rare fault frequent, such as one core."),
    "bisect": (
        "search",
        "Find the commit, version, value or environment from which on it fails more often, or less.",
    ),
    "minimize": ("search", "Find the smallest part of the mitigation set A,B that still fixes, by delta debugging."),
    "jobs": ("submit", "List the submitted jobs of a recipe, with --all also earlier ones."),
    "cancel": (
        "submit",
        "Cancel jobs of a recipe: by their numbers in pytest-aorta jobs, or by action.",
    ),
    "job-ended": ("submit", ""),
    "convert": ("run", "Convert a sweep recipe of AORTA's (YAML) to a recipe that pytest runs."),
    "merge": ("merge", "Merge results directories, or workspaces of recipes, into DESTINATION."),
    "ci-matrix": ("run", "List CI jobs that together run all trials of a recipe, or of pytest ARGUMENTS."),
    "list": ("here", "List registered workloads, mitigations, environments and collectors."),
    "env": ("here", "Show what a trial would record of this machine and this Python."),
    "report": ("results", "Write a results directory (default: results) as one HTML file that needs nothing else."),
    "compare": ("results", "Compare two results directories: B with A."),
    "bundle": (
        "bundle",
        "Pack RESULTS for a ticket: records, the table, logs of failed trials, lines that run them again.",
    ),
}


class Refused(click.ClickException):
    """A request that cannot be carried out: one message, exit code 2."""

    exit_code = 2


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.commands and name in _COMMANDS:
            module, text = _COMMANDS[name]
            commands = vars(import_module(f"pytest_aorta.cli.{module}")).values()
            command = next(each for each in commands if isinstance(each, click.Command) and each.name == name)
            command.help = f"{text}\n\n{inspect.cleandoc(command.help or '')}"
            for each in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
                each.params.append(_COLOR)
            self.add_command(command)
        return self.commands.get(name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items() if text])

    def invoke(self, ctx: click.Context) -> Any:
        gc.set_threshold(100_000)  # what is read of 100,000 directories is kept: to look for garbage takes a fifth
        showing = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if category.__name__ == "UnknownKey":
                click.echo(f"warning: {printable(str(message))}", err=True)
            else:
                showing(message, category, *place)

        warnings.showwarning = show  # type: ignore[assignment]
        try:
            log.follow()
            return super().invoke(ctx)
        except RequestError as error:
            raise Refused(printable(str(error))) from None
        finally:
            warnings.showwarning = showing


def _set_color(context: click.Context, parameter: click.Parameter, value: str) -> None:
    context.color = {"auto": None, "always": True, "never": False}[value]


_COLOR = click.Option(
    ["--color"],
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    envvar=["PYTEST_AORTA_COLOR", "ROW_COLOR"],
    expose_value=False,
    callback=_set_color,
    hidden=True,
)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="pytest-aorta")
def main() -> None:
    """Recipes, jobs and results of pytest-aorta. pytest runs the trials: pytest --aorta-workload NAME"""
