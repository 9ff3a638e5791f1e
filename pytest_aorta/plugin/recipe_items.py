"""A recipe as a test file: its collector, and the items of its commands and trials."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from pytest_aorta.common.bounded_waits import wait_bounded
from pytest_aorta.common.texts import printable
from pytest_aorta.plan import unit_of
from pytest_aorta.plugin.failures import TrialFailed
from pytest_aorta.plugin.recipe_run import HERE, RecipeRun, Said, action_run, asked_of_plan, recipe_run
from pytest_aorta.plugin.run import PAYLOAD, Run, end_in_order_when_terminated, run_of
from pytest_aorta.plugin.stopping import NotNeeded, cell_of
from pytest_aorta.plugin.trial_item import TrialItem, item_of
from pytest_aorta.runtime import process_tree as process_tags
from pytest_aorta.runtime.process_tree import Family, end_all
from pytest_aorta.settings import RequestError
from pytest_aorta.trials.outcome import signal_name
from pytest_aorta.workflow.groups import CommandUnit, action_variables, check_whole, command_units
from pytest_aorta.workflow.project import command_keys
from pytest_aorta.workflow.recipe import Action, shell_commands
from pytest_aorta.workflow.requests import recorded_digest, request_digest

if TYPE_CHECKING:
    from pytest_aorta.common.conditions import Json
    from pytest_aorta.launch.engine import RunningTrial
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workflow.project import Progress

#: Bytes of the end of a command's output that its report has.
_SHOWN = 65_536

#: Of these, lines and characters that ``pytest-aorta why`` shows later.
_KEPT_LINES, _KEPT = 10, 2000

#: Statuses of trials that have failed, which an action may expect.
_FAILED = ("workload_failed", "timeout")


class RecipeFile(pytest.File):
    """A recipe. Its items are its actions on their directories, each after those that it follows."""

    def collect(self) -> Iterable[pytest.Item]:
        """All of them, complete ones included: those are shown as they are."""
        try:
            run = recipe_run(self.config, self.path)
            items = [item for action in run.recipe.in_order() for item in self._items(run, action)]
        except RequestError as error:
            raise self.CollectError(str(error)) from None
        if not items:
            self.config.pluginmanager.register(Said([f"{self.name}: {_why_empty(run)}"]))
        return items

    def _items(self, run: RecipeRun, action: Action) -> Iterable[pytest.Item]:
        if action.is_matrix:
            yield from _trial_items(self, run, action)
            return
        run.prefix(action, 1)  # refused now, and not when it is about to run
        matrix, each = run.recipe.matrix_before(action), action.table.each
        if (each == "directory") != (matrix is None):
            why = "follows no action with a workload" if matrix is None else f"follows the workload of {matrix.name!r}"
            expected = "directory" if matrix is None else "trial, cell or matrix"
            message = f"action {action.name!r} {why}; each = {each!r} cannot be, expected {expected}"
            raise run.recipe.error(action, message)
        units, value_of = run.project.units(action), run.project.value_of(action)
        chosen = run.chosen(action, units)
        found = list(command_units(run.recipe, action, units, value_of))
        for unit in found:
            run.declare(action.name, unit.units, f"{self.nodeid}::{unit.name}")
        for unit in found if len(chosen) == len(units) else command_units(run.recipe, action, chosen, value_of):
            item: CommandItem = CommandItem.from_parent(self, name=unit.name)
            item.unit, item.run, item.is_whole = unit, run, len(chosen) == len(units)
            item.extra_keyword_matches.update([action.name, *unit.units])
            run.declare(action.name, unit.units, item.nodeid)
            yield item


def _why_empty(run: RecipeRun) -> str:
    recipe = run.recipe
    if not recipe.actions:
        return (
            'it has no action; command = "python train.py" and trials = 20 make one, or [[action]] for each of several'
        )
    count = len(run.project.directories)
    reason = f"none of the {count} has what the action includes" if count else "there is none"
    names = ", ".join(recipe.by_name)
    return f"{names}: a command runs on each directory of {recipe.directories}, and {reason}"


class CommandItem(pytest.Item):
    """A command on its directories. What is complete is not run; neither is what has to wait for others."""

    unit: CommandUnit
    run: RecipeRun
    is_whole: bool
    _end_of_output = ""

    def runtest(self) -> None:
        """Run the command on the directories that need it."""
        __tracebackhide__ = True
        action = self.unit.action
        left = [name for name in self.unit.units if not self.run.is_complete(action, name)]
        for name in set(self.unit.units).difference(left):
            self.run.note_kept(action.name, name)
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
        action, run, project = self.unit.action, self.run, self.run.project
        value_of = project.value_of(action)
        if not self.is_whole or len(units) < len(self.unit.units):  # else they are a whole group already
            check_whole(action, [units], project.units(action), value_of)
        for unit in units:
            project.folder(action, unit).mkdir(parents=True, exist_ok=True)  # a trial may have no artifacts
        paths, workspace = [run.path_of(action, unit) for unit in units], run.recipe.workspace.path
        (line,) = shell_commands(action.table.command or "", paths, [value_of(unit) for unit in units], workspace)
        variables = action_variables(action.name, action.table.resources, len(units), workspace, HERE)
        line = run.prefix(action, len(units)) + line
        keys = {unit: run.key_of(action)(unit) for unit in units}
        status = self._execute(line, run.recipe.root, variables)
        missing = {unit: project.missing_products(action, unit) for unit in units}
        how = signal_name(-status) if status < 0 else f"exit status {status}"
        wrong = [f"the command ended with {how}"] if status else []
        wrong += [f"no {', '.join(names)} in {run.path_of(action, unit)}" for unit, names in missing.items() if names]
        end = "\n".join(filter(None, (self._end_of_output, printable("; ".join(wrong)))))
        for unit in units:
            done = status == 0 and not missing[unit]
            if done and action.table.products:
                run.note(action.name, unit, "completed", key=keys[unit])
            else:
                run.note(action.name, unit, None if done else "failed", output="" if done else end)
        if wrong:
            raise TrialFailed(printable(f"{'; '.join(wrong)}\ncommand: {line}\nin: {run.recipe.root}"))

    def _execute(self, line: str, folder: Path, variables: Mapping[str, str]) -> int:
        end_in_order_when_terminated(self.config)
        grace, guard = run_of(self.config).selection.limits.grace, _guard(self.config)
        if self.config.getoption("capture", "fd") == "no":
            sys.stdout.flush()
            return _run_shell(line, folder, variables, None, grace, guard)
        with tempfile.TemporaryFile() as output:
            try:
                return _run_shell(line, folder, variables, output, grace, guard)
            finally:
                output.seek(max(0, output.seek(0, 2) - _SHOWN))
                text = printable(output.read().decode(errors="replace"))
                self._end_of_output = "\n".join(text.splitlines()[-_KEPT_LINES:])[-_KEPT:]
                if text:
                    self.add_report_section("call", "output", text)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.unit.action.line - 1, self.name

    def shard_keys(self) -> list[Hashable]:
        return [(self.path, *key) for key in command_keys(self.unit.action, self.run.recipe, self.unit.units)]

    def condition_values(self) -> list[Callable[[], Json]]:
        """For ``--aorta-where``."""
        value_of = self.run.project.value_of(self.unit.action)
        return [partial(value_of, unit) for unit in self.unit.units]


class _Guard:
    """Kills the command that runs when this process is killed.

    One shell for all commands, which hears their process groups through a pipe and acts at its end. For the kernel to
    do it (PR_SET_PDEATHSIG), a program would have to be started in front of each command, or pytest be forked.
    """

    _SCRIPT = 'while read -r group; do last=$group; done; [ -z "$last" ] || kill -KILL -- "-$last"'

    def __init__(self) -> None:
        read, self.write = os.pipe()
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", self._SCRIPT], stdin=read, stdout=subprocess.DEVNULL, start_new_session=True
        )
        os.close(read)

    def announced(self, script: str) -> str:
        """A script that first tells its process group: a shell that has not yet done so holds the pipe open."""
        return f"echo $$ >&{self.write}; exec {self.write}>&-; {script}"

    def forget(self) -> None:
        """The command has ended."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.write, b"\n")

    def close(self) -> None:
        os.close(self.write)
        self._process.kill()  # no command runs; a fork of pytest may hold the pipe open
        self._process.wait()


_GUARD = pytest.StashKey[_Guard]()


def _guard(config: pytest.Config) -> _Guard:
    if _GUARD not in config.stash:
        config.stash[_GUARD] = _Guard()
        config.add_cleanup(config.stash[_GUARD].close)
    return config.stash[_GUARD]


def _run_shell(
    script: str, folder: Path, variables: Mapping[str, str], output: IO[bytes] | None, grace: float, guard: _Guard
) -> int:
    """Run a script by ``/bin/bash -c``; its exit status, negative for a signal.

    What it has left in its process group when it ends is killed. When an exception ends the wait, such as Ctrl-C, it
    and all its descendants, daemons too, get SIGTERM and, ``grace`` seconds later, SIGKILL.
    """
    tag = process_tags.new_tag()
    process = subprocess.Popen(
        ["/bin/bash", "-c", guard.announced(script)],
        cwd=folder,
        env={**os.environ, **variables, process_tags.VARIABLE: tag},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for pytest, which then ends it with all that it has started
        pass_fds=(guard.write,),
    )
    family = Family(lambda: [process.pid])
    ended = os.pidfd_open(process.pid)

    def wait(seconds: float) -> bool:
        if select.select([ended], [], [], seconds)[0]:
            return True
        family.members()  # to know those whose parents will have ended
        return False

    def members() -> list[int]:
        return list({*family.members(), *process_tags.tagged_processes(tag)})

    try:
        wait_bounded(wait)
        os.killpg(process.pid, signal.SIGKILL)  # its own process is not reaped yet, so the number is still its
        return process.wait()
    except BaseException:
        end_all(members, process.poll, grace)
        process.wait()
        raise
    finally:
        guard.forget()
        os.close(ended)


class RecipeTrialItem(TrialItem):
    """A trial of an action: with what it follows, and with what is expected of it."""

    recipe: RecipeRun
    action: Action
    reproduced: bool

    def setup(self) -> None:
        """As of any trial, when all that the action follows is complete.

        Raises:
            NotNeeded: it is not.
        """
        self.reproduced = False
        unit = unit_of(self.spec)
        obstacle = self.recipe.obstacle(self.action, unit)
        if obstacle is None and self.recipe.trial_states[self.action.name](unit) == "open":
            obstacle = self.recipe.started.has_too_many(self.action.name, unit)
        if obstacle is not None:
            raise NotNeeded(printable(obstacle))
        super().setup()

    def launch(self, extra_env: Mapping[str, str]) -> RunningTrial:
        self.recipe.started.note(unit_of(self.spec))
        return super().launch(extra_env)

    def runtest(self) -> None:
        """Wait for the end of ``run()``, and hold it against what is expected."""
        if self.running is not None and self.running.resumed:
            self.user_properties.append(("aorta_state", "kept"))
        if not self.reproduced:
            super().runtest()
        if self.action.table.expect == "fail" and not self.reproduced:
            running = self.running
            if running is not None and running.finish().exit_status == "ok":
                raise TrialFailed('the trial is ok, and expected to fail (expect = "fail")')
        if self.reproduced:
            self.user_properties.append(("aorta_state", "reproduced"))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.action.line - 1, self.name

    def shard_keys(self) -> list[Hashable]:
        return [(self.path, self.action.name, unit_of(self.spec))]

    def _wait(self, phase: str) -> None:
        try:
            super()._wait(phase)
        except TrialFailed:
            if self.action.table.expect != "fail" or self.stash[PAYLOAD].exit_status not in _FAILED:
                raise
            self.reproduced = True


def _trial_items(parent: pytest.Collector, recipe: RecipeRun, action: Action) -> Iterator[RecipeTrialItem]:
    run = action_run(parent.config, recipe, action)
    recipe.trial_states[action.name] = _TrialStates(recipe, run, action)
    sibling: RecipeTrialItem | None = None
    chosen = set(recipe.chosen(action, [unit_of(spec) for spec in run.plan.trials]))
    for spec in run.plan.trials:
        name = run.shown_name(spec)
        if unit_of(spec) not in chosen:
            recipe.declare(action.name, [unit_of(spec)], f"{parent.nodeid}::{name}")
            continue
        sibling = item_of(RecipeTrialItem, parent, name, run, spec, run.plan.paths, sibling)
        sibling.recipe, sibling.action, sibling.reproduced = recipe, action, False
        sibling.extra_keyword_matches.add(action.name)
        recipe.declare(action.name, [unit_of(spec)], sibling.nodeid)
        yield sibling


class _TrialStates:
    def __init__(self, recipe: RecipeRun, run: Run, action: Action) -> None:
        self._recipe, self._run, self._action = recipe, run, action
        self._digests: dict[str, str] = {}
        self._expected = ("ok",) if action.table.expect == "pass" else _FAILED

    @cached_property
    def _trials(self) -> dict[str, TrialSpec]:
        return {unit_of(spec): spec for spec in self._run.plan.trials}

    def __call__(self, unit: str) -> Progress:
        spec = self._trials[unit]
        try:
            file = self._run.plan.paths(spec).file_in(self._run.results)
            record: dict[str, Any] = json.loads(file.read_bytes())
            status, request = record["exit_status"], recorded_digest(record)
        except (OSError, ValueError, TypeError, KeyError):
            return self._without_record(spec)
        if record.get("cell") != spec.cell or request != self._digests.setdefault(spec.cell, request_digest(spec)):
            return self._without_record(spec)
        if status in self._expected:
            return "completed"
        return "failed" if status in ("ok", *_FAILED) else "without_result"

    def _without_record(self, spec: TrialSpec) -> Progress:
        is_decided = spec.cell in self._decided_before or self._run.stopping.decided(cell_of(spec)) is not None
        return "not_needed" if is_decided else "open"

    @cached_property
    def _decided_before(self) -> Collection[str]:
        found = self._recipe.known.decided.get(self._action.name)
        return found.cells if found is not None and found.asked == asked_of_plan(self._action, self._run.plan) else ()
