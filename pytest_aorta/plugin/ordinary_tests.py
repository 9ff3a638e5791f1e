"""Trials of ordinary tests: the fixture ``aorta_run``, ``@pytest.mark.aorta`` with ``aorta_trial``, and existing tests
as trials: each selected test in every cell, each time in a pytest of its own."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import pytest_aorta.settings as valid
from pytest_aorta.common.import_target import module_file
from pytest_aorta.common.texts import counted, identifier, printable
from pytest_aorta.launch.launch_mode import SCRIPT_TARGET
from pytest_aorta.plan import Plan, check_axes, check_variables, planned, trials_of, turns_of_round
from pytest_aorta.plugin import MARKER, is_of_recipe
from pytest_aorta.plugin.compat import GeneratedFunction, add_reason, add_section, option_actions
from pytest_aorta.plugin.failures import failure_text, short_reason, tail_of
from pytest_aorta.plugin.one_test import NOT_INSIDE
from pytest_aorta.plugin.options import read_option
from pytest_aorta.plugin.run import (
    PAYLOAD,
    TEST_TARGET,
    WATCHER,
    ReportPayload,
    current_run,
    deadline_of,
    reason_of,
    run_of,
)
from pytest_aorta.plugin.trial_item import TrialItem, item_of
from pytest_aorta.registry import WorkloadEntry
from pytest_aorta.settings import RequestError
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.trials.execution import ElasticOptions, Execution
from pytest_aorta.trials.loading import file_digest
from pytest_aorta.trials.records import Failure, RankRecord, canonical_json
from pytest_aorta.trials.workload import to_plain
from pytest_aorta.workspace.paths import paths_in_test

if TYPE_CHECKING:
    from pytest_aorta.launch.job import TrialJob
    from pytest_aorta.plan import Selection
    from pytest_aorta.plugin.run import Run
    from pytest_aorta.trials.result import ExitStatus, TrialResult
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths


def check_keywords(fixture: str, call: Callable[..., Any], unknown: Iterable[str]) -> None:
    """Refuse the keywords that a fixture does not have, and name those of ``call``, which has."""
    __tracebackhide__ = True
    names = ", ".join(repr(name) for name in unknown)
    if names:
        parameters = inspect.signature(call).parameters.values()
        known = ", ".join(each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY)
        raise RequestError(f"{fixture} has no keyword {names}; it takes {known}")


#: Longest text of the options in the table.
_COLUMN = 60


class RunTrial:
    def __init__(self, item: pytest.Item, extra_env: Mapping[str, str]) -> None:
        #: The test that starts the trials.
        self.item = item
        #: That the test stands for, if it takes ``aorta_trial``.
        self.cell: Cell | None = None
        self._extra_env = extra_env
        #: How many trials of each cell it has started; a test may do so on several threads.
        self._counts: dict[str, Iterator[int]] = {}
        #: What the trials of a marked test have in common, where its node id says more.
        self.test = item.nodeid
        item.stash[PAYLOAD] = ReportPayload()
        self.occurrence = self.run.next_repeat(item)

    def __call__(
        self,
        workload: str | type[Any],
        *,
        steps: int | None = None,
        environment: str = "local",
        mitigations: Sequence[str] = ("none",),
        config: Mapping[str, Any] | None = None,
        extra_env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        index: int = 0,
        **unknown: NoReturn,
    ) -> TrialResult:
        """Run one trial in a separate process and wait for its end.

        Args:
            workload: registered name, or a workload class of this or any other file.
            steps: number of steps, for workloads that have this option.
            environment: registered name.
            mitigations: registered names, later ones win.
            config: options of the workload.
            extra_env: variables on top of the mitigations'.
            timeout: deadline in seconds.
            index: recorded as the trial's index.

        Raises:
            RequestError: an argument that cannot be, or what would prevent every such trial; of an unknown name it is
                a ``RegistryError``.
        """
        __tracebackhide__ = True  # pytest would show the arguments
        check_keywords("aorta_run", self.__call__, unknown)
        run = self.run
        steps = valid.taken(valid.optional(valid.positive_int), steps, "steps")
        timeout = valid.taken(valid.optional(valid.seconds), timeout, "timeout")
        config = valid.taken(valid.options, config or {}, "config")
        check_variables("the extra variables", extra_env or {})
        selection = replace(
            run.selection,
            trials=1,
            environments=(valid.taken(valid.name, environment, "environment"),),
            mitigations=(valid.taken(valid.names, mitigations, "mitigations"),),
            extra_env={**run.selection.extra_env, **(extra_env or {})},
            steps=steps if steps is not None else run.selection.steps,
            config=config,
            execution=in_a_process(run.selection.execution),
            limits=run.selection.limits if timeout is None else replace(run.selection.limits, timeout=timeout),
        )
        entry = run.registry.workload(workload) if isinstance(workload, str) else entry_of(workload)
        index = valid.taken(valid.whole, index, "index")
        spec = trials_of([entry], selection, run.registry)[0][0]
        watched = () if self.cell is None else self.cell.watched
        watched = tuple(sorted({*spec.watched, *watched}))
        spec = replace(spec, trial_index=index, watched=watched, order="", collect=selection.collect_first)
        given = [] if steps is None else [f"steps={steps}"]
        given += [*(f"{key}={value}" for key, value in config.items()), *(extra_env or {})]
        return self.carry_out(spec, shortened(", ".join(given)), extra_env or {})[0]

    def __repr__(self) -> str:
        return "aorta_run"  # in assertions: what pytest shows of aorta_run(...)

    @property
    def run(self) -> Run:
        return run_of(self.item.config)

    def carry_out(
        self,
        spec: TrialSpec,
        options: str,
        extra_env: Mapping[str, str],
        *,
        timeout: float | None = None,
        anew: bool = False,
    ) -> tuple[TrialResult, TrialPaths]:
        """Run one trial, wait for its end, and have its record reported; the record, and the trial's paths.

        ``options``: as the test has given them, for the table. ``extra_env``: that the test has given. ``timeout``
        comes before all other deadlines; ``anew``: run it although ``--aorta-resume`` has a result.
        """
        __tracebackhide__ = True  # pytest would show the variables
        run = self.run
        check_variables("the fixture aorta_extra_env", self._extra_env)
        deadline = timeout or deadline_of(self.item, spec)
        try:
            run.runner.check(spec, deadline)
        except RequestError as error:
            raise error.with_traceback(None) from None  # that of the engine shows nothing that is wrong
        first = paths_in_test(self.item.nodeid, spec.workload.name, spec.cell, 0)
        number = next(self._counts.setdefault(str(first.folder.parent), itertools.count()))
        paths = paths_in_test(self.item.nodeid, spec.workload.name, spec.cell, number)
        paths = paths.repeated(self.occurrence.number)
        same = [spec.workload.target, to_plain(dict(spec.overrides)), spec.steps, dict(extra_env), repr(spec.execution)]
        digest = hashlib.sha256(canonical_json(same).encode()).hexdigest()[:16]
        key = CellKey(spec.workload.name, spec.cell, printable(self.test), printable(options), digest)
        if anew:
            spec = replace(spec, overlay={**spec.overlay, **self._extra_env})
            running: TrialJob = run.runner.start(spec, paths, deadline)
        else:
            # A test that stands for a trial of a cell is skipped with it; any other counts on its trials.
            cell = key if self.cell is not None else None
            running = run.launch(self.item, spec, paths, self._extra_env, cell, again=self.occurrence.again)
        try:
            record = running.finish()
        except BaseException as error:  # Ctrl-C, or a time limit for the whole test
            why = reason_of(error)
            if isinstance(error, KeyboardInterrupt):
                run.interrupt(why)
            running.interrupt(why)
            run.add_record(self.item, paths, _started_by(key, running.finish()), running.resumed)
            raise
        if (watcher := run.config.stash.get(WATCHER, None)) is not None:
            watcher.trial_ended(paths.file_in(run.results))
        run.add_record(self.item, paths, _started_by(key, record), running.resumed)
        for text in (*running.take_warnings(), *record.warnings):
            self.item.warn(pytest.PytestWarning(text))
        return record, paths


def _started_by(key: CellKey, record: TrialResult) -> TrialResult:
    from pytest_aorta.trials.result import StartedBy  # pydantic, which a record needs anyway

    return record.model_copy(update={"test": StartedBy(node_id=key.test, options=key.options, digest=key.digest)})


def shortened(text: str) -> str:
    text = " ".join(printable(text).split())
    return text if len(text) <= _COLUMN else f"{text[: _COLUMN - 3]}..."


def in_a_process(execution: Execution) -> Execution:
    return replace(execution, isolation="auto") if execution.isolation == "none" else execution


def entry_of(cls: type[Any]) -> WorkloadEntry:
    """A workload class as a registry entry; it is loaded from its file again in the trial's process."""
    if not isinstance(cls, type):
        raise RequestError(f"workload: {valid.shown(cls)} is not valid; expected a name, or a class")
    if "<locals>" in cls.__qualname__:
        raise RequestError(f"{cls.__qualname__} is defined inside a function; define it at the top of a module")
    file = inspect.getsourcefile(cls)
    name = getattr(cls, "name", None)
    name = name if isinstance(name, str) else cls.__name__
    return WorkloadEntry(name, f"{file}:{cls.__qualname__}", f"file:{file}")


# Scripts under torchrun


@dataclass(frozen=True, repr=False)
class TorchrunResult:
    """What became of a script under torchrun.

    Attributes:
        trial: the complete record, as in the trial file.
        ranks: of the last attempt, by rank; of a rank that was never started, only the number is known.
        folder: holds the logs.
        returncode: torchrun's own; ``None`` when it was ended, because of the deadline for instance.
    """

    trial: TrialResult
    ranks: tuple[RankRecord, ...]
    folder: Path
    returncode: int | None

    @property
    def ok(self) -> bool:
        """Whether torchrun has ended with exit code 0, in time."""
        return self.exit_status == "ok"

    @property
    def exit_status(self) -> ExitStatus:
        """``ok``, ``workload_failed`` (by the script), ``infrastructure_failed`` (not started), or ``timeout``."""
        return self.trial.exit_status

    @property
    def failure(self) -> Failure | None:
        """What went wrong first, with its ``rank``; ``None`` when nothing did."""
        return self.trial.failure

    @property
    def restarts(self) -> int:
        """How often torchrun has started all ranks again."""
        return self.trial.restarts

    @property
    def elapsed_sec(self) -> float | None:
        """Seconds from the start of torchrun to the end of the last process; ``None`` where it was not started."""
        return self.trial.wall_clock_sec

    @property
    def message(self) -> str:
        """The outcome in one line, then the traceback or the end of the log."""
        title = f"{self.trial.workload} on {counted(len(self.ranks), 'rank')}: {self.exit_status}"
        failure = self.failure
        if failure is None:
            return title
        rank = "" if failure.rank is None else f"rank {failure.rank}: "
        said = failure.message.removeprefix(rank)
        kind = f"{failure.type}: " if failure.type and not said.startswith(f"{failure.type}: ") else ""
        lines = [f"{title}: {rank}{kind}{said}"]
        if failure.traceback:
            lines += failure.traceback.rstrip().splitlines()
        elif tail := tail_of(self._log(failure.rank, "stderr")):
            lines += ["--- end of stderr ---", *tail]
        return printable("\n".join([*lines, f"logs: {self.folder}"]))

    def stdout(self, rank: int = 0) -> str:
        """What a rank has printed, in the last attempt; ``IndexError`` where there is no such rank."""
        return self._read(rank, "stdout")

    def stderr(self, rank: int = 0) -> str:
        """The same of its standard error."""
        return self._read(rank, "stderr")

    def _read(self, rank: int, stream: str) -> str:
        if not 0 <= rank < len(self.ranks):
            raise IndexError(f"there is no rank {rank}; the ranks are 0 to {len(self.ranks) - 1}")
        try:
            return self._log(rank, stream).read_text(errors="replace")
        except FileNotFoundError:  # it was never started
            return ""

    def _log(self, rank: int | None, stream: str) -> Path:
        found = None if rank is None else getattr(self.ranks[rank], stream)
        if found is not None:
            return self.folder.parent / str(found)
        return self.folder / (f"{stream}.log" if rank is None else f"rank_{rank}.{stream}.log")

    def __repr__(self) -> str:
        return f"<TorchrunResult {self.message.partition(chr(10))[0]}>"


#: What a script's argument may be.
Argument = str | os.PathLike[str] | int | float


class RunTorchrun:
    def __init__(self, run: RunTrial) -> None:
        self._run = run

    def __call__(
        self,
        script: str | os.PathLike[str],
        *arguments: Argument,
        nproc: int = 1,
        env: Mapping[str, str] | None = None,
        max_restarts: int = 0,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        mitigations: Sequence[str] = ("none",),
        **unknown: NoReturn,
    ) -> TorchrunResult:
        """Run a script in separate processes and wait for their end. What it does is in the result, not an exception.

        Args:
            script: a file, looked for in ``cwd`` and then beside the test; or ``"-m"``, and a module's name follows.
            arguments: of the script.
            nproc: number of ranks.
            env: variables on top of the mitigations'.
            max_restarts: times that torchrun starts all ranks again after one has failed.
            cwd: working directory; pytest's own, if not given.
            timeout: deadline in seconds.
            mitigations: registered names, later ones win.

        Raises:
            FileNotFoundError, ModuleNotFoundError: there is no such script, module, or ``cwd``, or no torch.
            ValueError, TypeError: an argument that cannot be.
            RegistryError: an unknown name.
            LaunchModeError: pytest is a rank itself, or there are too few devices.
        """
        __tracebackhide__ = True  # pytest would show the arguments
        check_keywords("aorta_torchrun", self.__call__, unknown)
        nproc = valid.taken(valid.positive_int, nproc, "aorta_torchrun: nproc")
        max_restarts = valid.taken(valid.whole, max_restarts, "aorta_torchrun: max_restarts")
        timeout = valid.taken(valid.optional(valid.seconds), timeout, "aorta_torchrun: timeout")
        check_variables("aorta_torchrun(env=)", env or {})
        if importlib.util.find_spec("torch") is None:
            raise ModuleNotFoundError(f"aorta_torchrun: torch is not installed for {sys.executable}")
        folder = Path.cwd() if cwd is None else Path(cwd).absolute()
        if not folder.is_dir():
            raise FileNotFoundError(f"aorta_torchrun: cwd={str(cwd)!r} is no folder")
        what, source, words = self._find([_word(argument) for argument in (script, *arguments)], folder, env or {})
        entry = WorkloadEntry(what.get("module") or Path(source).stem, SCRIPT_TARGET, f"file:{source}")
        options = {"arguments": words, "nproc": nproc, "max_restarts": max_restarts, "cwd": str(folder)}
        options |= {**what, "source": source, "digest": file_digest(Path(source))}
        run, elastic = self._run.run, ElasticOptions(max_restarts=max_restarts)
        execution = in_a_process(run.selection.execution)
        selection = replace(
            run.selection,
            trials=1,
            environments=("local",),
            mitigations=(valid.taken(valid.names, mitigations, "aorta_torchrun: mitigations"),),
            extra_env={**run.selection.extra_env, **(env or {})},
            steps=None,
            config=options,
            execution=replace(execution, launcher="torchrun", nproc=nproc, elastic=elastic),
            limits=replace(run.selection.limits, stall_timeout=None),  # a script cannot report progress
        )
        spec = trials_of([entry], selection, run.registry)[0][0]
        # Anew every time: which files decide what a script does is not known.
        given = [*words, f"nproc={nproc}", *(env or {})]
        trial, paths = self._run.carry_out(spec, shortened(" ".join(given)), env or {}, timeout=timeout, anew=True)
        known = {record.rank: record for record in trial.ranks}
        ranks = tuple(known.get(rank, RankRecord(rank=rank)) for rank in range(nproc))
        code = trial.result.metrics.get("returncode")
        if code is None and trial.failure is not None and trial.failure.rank is None:
            code = trial.failure.exit_code
        return TorchrunResult(trial, ranks, paths.folder_in(run.results), code)

    def _find(self, words: list[str], folder: Path, env: Mapping[str, str]) -> tuple[dict[str, str], str, list[str]]:
        __tracebackhide__ = True
        script, *arguments = words
        if script == "-m":
            if not arguments:
                raise ValueError(
                    "aorta_torchrun: '-m' is followed by no module; expected aorta_torchrun('-m', 'package.module')"
                )
            module, *arguments = arguments
            places = [str(folder), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
            main, file = module_file(f"{module}.__main__", places), module_file(module, places)
            if main is None and file is None:
                raise ModuleNotFoundError(f"aorta_torchrun: there is no module {module!r} in {folder} or on sys.path")
            if main is None and file is not None and file.name == "__init__.py":
                raise ModuleNotFoundError(
                    f"aorta_torchrun: {module!r} is a package without __main__; name one of its modules"
                )
            return {"module": module}, str(main or file), arguments
        if script.startswith("-"):
            raise ValueError(
                f"aorta_torchrun: {script!r} is no script; torchrun's options are the keywords nproc= and "
                "max_restarts=, and what follows the script are its own arguments"
            )
        bases = list(dict.fromkeys((folder, self._run.item.path.parent)))
        for base in bases:
            if (base / script).is_file():
                found = str((base / script).absolute())
                return {"script": found}, found, arguments
        raise FileNotFoundError(
            f"aorta_torchrun: there is no script {script!r} in {' or in '.join(map(str, bases))}; "
            "for a module, '-m' comes first"
        )


def _word(argument: Any) -> str:
    __tracebackhide__ = True
    if isinstance(argument, bool) or not isinstance(argument, str | os.PathLike | int | float):
        kind = type(argument).__name__
        raise TypeError(f"aorta_torchrun: an argument of the script is a {kind}; expected a text, a path or a number")
    return os.fspath(argument) if isinstance(argument, os.PathLike) else str(argument)


# Marked tests


@dataclass(frozen=True)
class Cell:
    """Parameter of a marked test; ``watched``: names of the variables that any cell of the test sets."""

    environment: str
    mitigations: tuple[str, ...]
    index: int
    watched: frozenset[str]

    @property
    def label(self) -> str:
        names = "+".join(identifier(name) for name in self.mitigations)
        return f"{identifier(self.environment)}-{names}-{self.index}"

    def value(self) -> dict[str, Any]:
        """For conditions on trials; the workload is known to the test only."""
        return {"environment": self.environment, "mitigations": list(self.mitigations), "trial": self.index}


class MarkedTrial:
    def __init__(self, cell: Cell, run: RunTrial) -> None:
        self.index = cell.index
        self.environment = cell.environment
        self.mitigations = cell.mitigations
        self._run = run
        run.cell = cell
        test, bracket, parameters = run.item.nodeid.partition("[")
        others = f"-{parameters.removesuffix(']')}-".replace(f"-{cell.label}-", "-", 1).strip("-") if bracket else ""
        run.test = f"{test}[{others}]" if others else test

    def __call__(
        self,
        workload: str | type[Any],
        *,
        steps: int | None = None,
        config: Mapping[str, Any] | None = None,
        extra_env: Mapping[str, str] | None = None,
        **unknown: NoReturn,
    ) -> TrialResult:
        __tracebackhide__ = True  # pytest would show the arguments
        check_keywords("aorta_trial", self.__call__, unknown)
        return self._run(
            workload,
            steps=steps,
            environment=self.environment,
            mitigations=self.mitigations,
            config=config,
            extra_env=extra_env,
            index=self.index,
        )

    def __repr__(self) -> str:
        return "aorta_trial"


def _several(read: valid.Reader, expected: str) -> valid.Reader:
    def read_all(value: Any) -> tuple[Any, ...]:
        try:
            found = tuple(map(read, (value,) if isinstance(value, str) else value))
        except (TypeError, ValueError):
            found = ()
        if not found:
            raise ValueError(expected)
        return found

    return read_all


#: What each keyword of the marker takes.
_KEYWORDS: Mapping[str, valid.Reader] = {
    "trials": valid.positive_int,
    "mitigations": _several(valid.names, "a list of mitigation sets, each a text with commas or a list of names"),
    "environments": _several(valid.name, "a name, or a list of names"),
    "timeout": valid.optional(valid.seconds),
}


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Check the markers of a test; with ``aorta_trial``, one item per trial of every cell, in rounds as in a plan."""
    __tracebackhide__ = True
    run = run_of(metafunc.config)
    problem = ""
    try:
        chosen, _ = marked_selection(metafunc.definition, run)
        if "aorta_trial" not in metafunc.fixturenames:
            return
        environments, sets = chosen.environments, chosen.mitigations
        _check_names(run, environments, sets, "--aorta-trials")
    except RequestError as error:
        problem = f"{metafunc.definition.nodeid}: {error}"
    if problem:
        pytest.fail(problem, pytrace=False)
    bundles = [run.registry.environment(name).env for name in environments]
    bundles += [run.registry.mitigation(name).env for names in sets for name in names]
    watched = frozenset(itertools.chain.from_iterable(bundles))
    each = [(place, names) for place in environments for names in sets]
    seed = metafunc.definition.nodeid
    cells = [Cell(*each[turn], i, watched) for i in range(chosen.trials) for turn in turns_of_round(i, len(each), seed)]
    metafunc.parametrize("aorta_trial", cells, indirect=True, ids=[cell.label for cell in cells])


def marked_selection(node: pytest.Item, run: Run) -> tuple[Selection, bool]:
    """The selection of a run as the markers of a test change it, and whether one of them asks for trials."""
    chosen, asks = run.selection, False
    for marker in reversed(list(node.iter_markers("aorta"))):  # the closest one last
        unknown = sorted(set(marker.kwargs) - set(_KEYWORDS))
        if unknown or marker.args:
            what = ", ".join(unknown) or "positional arguments"
            raise RequestError(f"{MARKER} takes the keywords {', '.join(_KEYWORDS)}, not {what}")
        given = {}
        for keyword, value in marker.kwargs.items():
            try:
                given[keyword] = _KEYWORDS[keyword](value)
            except ValueError as error:
                raise RequestError(f"{MARKER} has {keyword}={valid.shown(value)}; expected {error}") from None
        given.pop("timeout", None)
        asks |= bool(given)
        chosen = replace(chosen, **given)
        _check_names(run, given.get("environments", ()), given.get("mitigations", ()), "trials=", f"{MARKER}: ")
    return chosen, asks


def _check_names(
    run: Run, environments: Sequence[str], sets: Sequence[Sequence[str]], more: str, source: str = ""
) -> None:
    try:
        for name in environments:
            run.registry.environment(name)
        for name in itertools.chain.from_iterable(sets):
            run.registry.mitigation(name)
        check_axes(environments, sets, more)
    except RequestError as error:
        raise RequestError(f"{source}{error}") from None


#: Trials of one test that are shown in full.
_SHOWN = 3


def add_failed_trials(report: pytest.TestReport, item: pytest.Item) -> None:
    """Show the failed trials of a failed test as those of trial items are shown, the reason of the first one in the
    short summary as well."""
    failed = [trial for trial in item.stash[PAYLOAD].trials if trial.result["exit_status"] != "ok"]
    if not failed:
        return
    from pytest_aorta.trials.result import TrialResult

    records = [TrialResult.from_dict(trial.result) for trial in failed[:_SHOWN]]
    add_reason(report.longrepr, short_reason(records[0]))
    if item.config.option.tbstyle == "line":
        return
    results = run_of(item.config).results
    for trial, record in zip(failed, records, strict=False):
        title = printable(f"trial of {record.workload} in {record.cell}")
        add_section(report.longrepr, title, failure_text(record, results / trial.path, item))
    if len(failed) > _SHOWN:
        files = "\n".join(str(results / trial.path) for trial in failed[_SHOWN:])
        add_section(report.longrepr, f"{len(failed) - _SHOWN} more failed trials", printable(files))


# Existing tests as trials

#: Fixtures of a test that starts its trials itself.
_OWN_FIXTURES = frozenset({"aorta_run", "aorta_trial", "aorta_torchrun"})

#: Markers that count in the process of a trial, and not for its item.
_INSIDE = frozenset({"skip", "skipif", "xfail", "flaky", "timeout", "usefixtures", "repeat"})

#: Options that change how pytest prints, and those whose values are given apart.
_NOT_HANDED_ON = frozenset(
    {
        *NOT_INSIDE,
        *("verbose", "quiet", "reportchars", "showlocals", "tbstyle", "color", "code_highlight", "fulltrace"),
        *("durations_min", "no_header", "no_summary", "force_short_summary", "disable_warnings", "rootdir"),
        *("inifilename", "cov_source", "cov_report", "no_cov", "reruns", "reruns_delay"),
    }
)


def with_trials(collector: pytest.Collector, report: pytest.CollectReport) -> pytest.CollectReport:
    """What a collector has found, with trials in the place of tests that are to have some."""
    known = current_run(collector.config)
    takes_tests = known is not None and known.takes_tests
    if not takes_tests and not any("aorta" in node.keywords for node in report.result):
        return report  # and no run is made, which a test that starts trials may not be allowed
    run = run_of(collector.config)
    try:
        report.result = [each for node in report.result for each in _in_place_of(node, run)]
    except RequestError as error:
        return pytest.CollectReport(collector.nodeid, "failed", f"{collector.nodeid}: {error}", [])
    return report


def _in_place_of(node: pytest.Item | pytest.Collector, run: Run) -> Sequence[pytest.Item | pytest.Collector]:
    if not isinstance(node, pytest.Item) or isinstance(node, TrialItem) or is_of_recipe(node.nodeid):
        return [node]
    if not _OWN_FIXTURES.isdisjoint(getattr(node, "fixturenames", ())):
        return [node]
    selection, asks = marked_selection(node, run)
    if not asks and not run.takes_tests:
        return [node]
    why, option = "", node.config.option
    if option.usepdb or option.trace:
        why = "a debugger (--pdb, --trace) is of no use in the process of a trial"
    elif getattr(option, "aorta_isolation", None) == "none":
        why = "--aorta-isolation none leaves a trial no process of its own"
    elif node.get_closest_marker("xdist_group") is not None:
        why = "its xdist_group has tests that run in one process"
    if why:
        node.warn(pytest.PytestWarning(f"{node.nodeid} runs once, and not as trials: {why}"))
        return [node]
    for name in itertools.chain.from_iterable(selection.mitigations):
        if run.registry.mitigation(name).options:
            raise RequestError(f"{name}: a test has no options; config.NAME is for workloads")
    if read_option(node.config, "isolation") is None:
        selection = replace(selection, execution=replace(selection.execution, isolation="spawn"))
    config, names = node.config, node.nodeid.partition("::")[2]
    given = {
        "test": f"{node.path}::{names}" if names else str(node.path),
        "nodeid": node.nodeid,
        "rootdir": str(config.rootpath),
        "inifile": None if config.inipath is None else str(config.inipath),
        "arguments": _arguments(config),
    }
    plan = planned([WorkloadEntry(node.nodeid, TEST_TARGET, "pytest", given)], selection, run.registry)
    return list(_items(node, plan, run))


def _arguments(config: pytest.Config) -> list[str]:
    """What the command line says of how tests are found and run; not which, and nothing of trials."""
    actions = option_actions(config)
    given = iter(getattr(config, "workerinput", {}).get("aorta_arguments", map(str, config.invocation_params.args)))
    kept = []
    for text in given:
        flags = [text.partition("=")[0]] if text.startswith("--") else [f"-{char}" for char in text[1:]]
        for place, flag in enumerate(flags if text.startswith("-") else ()):
            action = actions.get(flag)
            if action is None:
                break
            words = [flag]
            has_value = action.nargs != 0
            if has_value:
                rest = text[len(flag) + 1 :] if text.startswith("--") else text[place + 2 :]
                inside = "=" in text if text.startswith("--") else bool(rest)
                words.append(rest if inside else next(given, ""))
            is_ours = action.dest.startswith("aorta_") or words[-1].startswith("aorta_")
            if action.dest not in _NOT_HANDED_ON and not is_ours:
                kept += words
            if has_value:
                break
    return [*kept, *(["--no-cov"] if "--no-cov" in actions else [])]


def _items(test: pytest.Item, plan: Plan, run: Run) -> Iterator[TestTrialItem]:
    name, bracket, parameters = test.name.partition("[")
    others = f"{parameters.removesuffix(']')}-" if bracket else ""
    assert isinstance(test.parent, pytest.Collector)
    item: TestTrialItem | None = None
    for spec in plan.trials:
        label = f"{name}[{others}{spec.cell}-{spec.trial_index}]"
        item = item_of(TestTrialItem, test.parent, label, run, spec, plan.paths, item)
        item.test = test
        item.own_markers += [mark for mark in test.own_markers if mark.name not in _INSIDE]
        item.keywords.update((mark.name, mark) for mark in item.own_markers)
        run.tests.append(spec)
        yield item


class TestTrialItem(TrialItem):
    __test__ = False
    #: In whose place it stands.
    test: pytest.Item

    @classmethod
    def of(
        cls, parent: pytest.Collector, name: str, function: Callable[..., None], sibling: GeneratedFunction | None
    ) -> Any:
        """Its fixtures are set up inside, and those that all tests use are not outside as well."""
        if sibling is None:
            return cls.with_fixture(parent, name, function, "aorta_extra_env")
        return super().of(parent, name, function, sibling)

    def iter_markers_with_node(self, name: str | None = None) -> Iterator[tuple[Any, pytest.Mark]]:
        return ((node, mark) for node, mark in super().iter_markers_with_node(name) if mark.name not in _INSIDE)

    def reportinfo(self) -> tuple[Path, int, str]:
        path, line, _ = self.test.reportinfo()
        return Path(path), line or 0, self.nodeid.partition("::")[2].replace("::", ".")
