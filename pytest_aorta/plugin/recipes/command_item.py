"""The pytest item of a command on a directory of the workspace, or on a group of them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_aorta.common.terminal_text import printable
from pytest_aorta.plugin.failure_text import TrialFailed
from pytest_aorta.plugin.recipes.recipe_run import HERE
from pytest_aorta.plugin.recipes.shell import run_shell
from pytest_aorta.plugin.run import run_of
from pytest_aorta.plugin.sigterm import end_in_order_when_terminated
from pytest_aorta.plugin.stopping.early_end import NotNeeded
from pytest_aorta.settings import RequestError
from pytest_aorta.trials.outcome import signal_name
from pytest_aorta.workflow.commands import shell_commands
from pytest_aorta.workflow.environment import action_variables
from pytest_aorta.workflow.groups import check_whole

if TYPE_CHECKING:
    from pytest_aorta.plugin.recipes.recipe_run import RecipeRun
    from pytest_aorta.workflow.command_units import CommandUnit

#: Bytes of the end of a command's output that its report has.
_SHOWN = 65_536


class CommandItem(pytest.Item):
    """A command on its directories. What is complete is not run; neither is what has to wait for others."""

    unit: CommandUnit
    run: RecipeRun

    def runtest(self) -> None:
        """Run the command on the directories that need it.

        Raises:
            NotNeeded: a previous action is not complete.
            TrialFailed: the command has failed, or has not made its products.
        """
        __tracebackhide__ = True
        action = self.unit.action
        left = [name for name in self.unit.units if not self.run.is_complete(action, name)]
        for name in set(self.unit.units).difference(left):
            self.run.note_kept(action, name)
        if not left:
            self.user_properties.append(("aorta_state", "kept"))
            return
        obstacles = {name: self.run.obstacle(action, name) for name in left}
        eligible = [name for name in left if obstacles[name] is None]
        if not eligible:
            raise NotNeeded(printable(next(reason for reason in obstacles.values() if reason is not None)))
        try:
            self._run(eligible)
        except RequestError as error:
            raise TrialFailed(printable(str(error))) from None

    def _run(self, units: Sequence[str]) -> None:
        action, recipe = self.unit.action, self.run.recipe
        known = self.run.units_of(action)
        if len(units) < len(self.unit.units):  # else they are a whole group already
            check_whole(action.table.group, action.name, [units], known.names, known.value_of)
        for unit in units:
            self.run.folder(action, unit).mkdir(parents=True, exist_ok=True)  # a trial may have no artifacts
        paths, values = [known.path_of(unit) for unit in units], [known.value_of(unit) for unit in units]
        workspace = recipe.workspace.path
        (line,) = shell_commands(action.table.command or "", paths, values, workspace)
        variables = action_variables(action.name, action.table.resources, len(units), workspace, HERE)
        line = self.run.prefix(action, len(units)) + line
        status = self._execute(line, recipe.root, variables)
        missing = {unit: self.run.missing(action, unit) for unit in units}
        for unit in units:
            done = status == 0 and not missing[unit]
            self.run.note(action, unit, "failed" if not done else "completed" if action.table.products else None)
        wrong = [] if status == 0 else [_ended(status)]
        wrong += [f"no {', '.join(names)} in {known.path_of(unit)}" for unit, names in missing.items() if names]
        if wrong:
            raise TrialFailed(printable(f"{'; '.join(wrong)}\ncommand: {line}\nin: {recipe.root}"))

    def _execute(self, line: str, folder: Path, variables: Mapping[str, str]) -> int:
        """The exit status; the output goes to the item's report, or with ``-s`` to the terminal."""
        end_in_order_when_terminated(self.config)
        grace = run_of(self.config).selection.limits.grace
        if self.config.getoption("capture", "fd") == "no":
            sys.stdout.flush()
            return run_shell(line, folder, variables, None, grace)
        with tempfile.TemporaryFile() as output:
            try:
                return run_shell(line, folder, variables, output, grace)
            finally:
                output.seek(max(0, output.seek(0, 2) - _SHOWN))
                text = printable(output.read().decode(errors="replace"))
                if text:
                    self.add_report_section("call", "output", text)

    def reportinfo(self) -> tuple[Path, int, str]:
        """The recipe, the line of the action, and the name."""
        return self.path, self.unit.action.line - 1, self.name


def _ended(status: int) -> str:
    """How a shell has ended."""
    if status < 0:
        return f"the command ended with {signal_name(-status)}"
    return f"the command ended with exit status {status}"
