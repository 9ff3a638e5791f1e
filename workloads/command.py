"""Any command as a workload: what a program does is known by its exit status and its output."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from pytest_aorta.launch.child.bootstrap import bootstrap_variables
from pytest_aorta.launch.child.bootstrap.sitecustomize import COLLECT
from pytest_aorta.launch.child.command import CommandProcess, command_result, last_to_leave
from pytest_aorta.launch.child.rank_files import write_adopted_ends
from pytest_aorta.runtime.process_tree import STACK_SIGNAL, catches
from pytest_aorta.trials.command_line import (
    CommandNotFound,
    checked_command,
    command_words,
    files_in,
    fill_in,
    is_python,
    launcher_in,
    located,
    module_path,
    placeholders_in,
    program_not_found,
    runnable,
    script_of,
    takes_hash_seed,
)
from pytest_aorta.trials.execution import HASH_SEED, TRIAL_DIR, TRIAL_SEED, start_folder
from pytest_aorta.trials.output import SEED, OutputFindings, OutputRules, checked_metric, checked_regex
from pytest_aorta.trials.readers import checked_source
from pytest_aorta.trials.workload import CommandResult, Workload


def _one_or_several(value: object) -> object:
    """A text is one expression, unless it is a list in JSON: brackets are a part of expressions as well."""
    if not isinstance(value, str):
        return value
    try:
        listed = json.loads(value)
    except (ValueError, RecursionError):
        return (value,)
    return listed if isinstance(listed, list) else (value,)


Regexes = Annotated[tuple[Annotated[str, AfterValidator(checked_regex)], ...], BeforeValidator(_one_or_several)]
Sources = Annotated[tuple[Annotated[str, AfterValidator(checked_source)], ...], BeforeValidator(_one_or_several)]
Metrics = Annotated[tuple[Annotated[str, AfterValidator(checked_metric)], ...], BeforeValidator(_one_or_several)]


class Command(Workload):
    """A program, run once per trial, in the folder that pytest was started in.

    It passes with exit code 0, unless ``fail_on``, ``pass_on`` or a metric that is not finite say otherwise. Its output
    goes to the trial's logs as it comes, and is looked at line by line.
    """

    class Config(BaseModel):
        """Options.

        Attributes:
            command: program and arguments; ``{trial}``, ``{dir}`` and ``{seed}`` are replaced.
            fail_on: regular expressions; a line that matches one fails the trial.
            pass_on: regular expressions; if there are any, the trial fails when no line matches one.
            skip_on: regular expressions; a line that matches one says that the trial cannot judge the workload.
            metric: regular expressions with named groups.
            metrics_from: auto, hf and other formats, jsonl:PATH or tensorboard:DIR.
            fail_on_nonfinite: whether any value that is NaN or infinite fails the trial, as such a metric always does.
            allow_nonfinite: names of values that may be so.
            depends: files and folders whose change makes a result stale, besides those that can be found.
            observe: none, exits or full, see docs/guides/command.md; auto: full with a launcher, else exits.
            stdin: a file that is its standard input; none by default.
            unbuffered: whether Python programs write their output at once (``PYTHONUNBUFFERED``), unless that variable
                is set.
        """

        model_config = ConfigDict(extra="forbid", frozen=True)

        command: Annotated[str, AfterValidator(checked_command)]
        fail_on: Regexes = ()
        pass_on: Regexes = ()
        skip_on: Regexes = ()
        metric: Metrics = ()
        metrics_from: Sources = ()
        fail_on_nonfinite: bool = False
        allow_nonfinite: Annotated[tuple[str, ...], BeforeValidator(_one_or_several)] = ()
        depends: Annotated[tuple[str, ...], BeforeValidator(_one_or_several)] = ()
        observe: Literal["auto", "none", "exits", "full"] = "auto"
        stdin: str = ""
        unbuffered: bool = True

    config: Config

    def setup(self) -> None:
        """Start it.

        Raises:
            CommandNotFound: there is no such program, or no such script.
            OSError: it cannot be started.
        """
        words = command_words(self.config.command)
        start = located(fill_in(words, os.environ))
        problem = program_not_found(start, os.environ.get("PATH", os.defpath))
        if problem is not None:
            raise CommandNotFound(problem)
        self._findings = OutputFindings(OutputRules.of(self.config))
        self._seed = int(os.environ[TRIAL_SEED]) if SEED in placeholders_in(words) else None
        self._started = time.perf_counter()
        self._folder = Path(os.environ[TRIAL_DIR]).parent
        self._observed = self._how_observed()
        program = runnable(start, os.environ.get("PATH", os.defpath))
        stdin = os.path.join(start_folder(), self.config.stdin) if self.config.stdin else None
        may_fork = self._observed != "none"
        self._process = CommandProcess(program, self._variables(start), stdin, may_fork=may_fork)

    def _how_observed(self) -> str:
        if not catches(os.getpid(), STACK_SIGNAL):  # as the process of a trial does, and pytest's own does not
            return "none"
        if COLLECT in os.environ:
            return "full"
        if self.config.observe != "auto":
            return self.config.observe
        return "exits" if launcher_in(self.config.command) is None else "full"

    def _variables(self, words: Sequence[str]) -> dict[str, str]:
        variables = {**os.environ, **module_path(words, os.environ)}
        hash_seed = variables.pop(HASH_SEED, None)
        if self._observed != "none":
            if self.config.unbuffered:
                variables.setdefault("PYTHONUNBUFFERED", "1")
            sockets = f"{variables.get('TMPDIR')}.s"
            given = {"sockets": sockets if os.path.isdir(sockets) else "", "stacks": str(self._folder / "stacks.log")}
            given["how"] = self._observed
            variables |= bootstrap_variables(variables, folder=str(self._folder), **given)
            # What the program starts in its turn draws its own, as the program hides it.
            if hash_seed is not None and "PYTHONHASHSEED" not in variables and takes_hash_seed(words):
                variables |= {"PYTHONHASHSEED": hash_seed, HASH_SEED: hash_seed}
        return variables

    def run(self) -> CommandResult:
        """Pass its output on until it ends."""
        found, counts_steps = self._findings, self._findings.rules.has_steps
        alive = cast(Callable[[None], None], self.progress)  # which the runner has replaced

        def take(line: str, at: float) -> None:
            if found.take(line, at) and found.step is not None:
                self.progress(found.step, found.total)
            elif not counts_steps:
                alive(None)

        with last_to_leave():
            code = self._process.follow(take)
        elapsed = time.perf_counter() - self._started
        write_adopted_ends(self._folder)
        found.read_files()
        result = command_result(code, found, self._process.errors.decode(errors="replace"), elapsed)
        if self._seed is not None:
            result.metrics[SEED] = self._seed
        result.output["observed"] = self._observed
        return result

    def cleanup(self) -> None:
        """End it, where it has not been waited for."""
        if hasattr(self, "_process"):
            self._process.end()

    @classmethod
    def data_files(cls, config: Config) -> list[str]:
        """The scripts and configurations that it names, and what ``depends`` does."""
        given = [config.stdin] if config.stdin else []
        return [*files_in(command_words(config.command)), *given, *config.depends]

    @classmethod
    def aorta_description(cls, config: Config) -> dict[str, Any]:
        """What differs from other workloads: its source file is the script, and its interpreter may be another one."""
        words = command_words(config.command)
        script = script_of(words)
        python = shutil.which(words[0]) if is_python(words[0]) else None
        is_ours = python is None or os.path.dirname(python) == os.path.dirname(sys.executable)
        source = None if script is None else os.path.abspath(script)
        return {"source": source, "interpreter": None if is_ours else python}
