"""The fixture ``aorta_torchrun``: a test runs a script, as it is, under torch's own torchrun."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest_aorta.settings as valid
from pytest_aorta.common.import_target import module_file
from pytest_aorta.common.texts import counted, printable
from pytest_aorta.launch.launch_mode import SCRIPT_TARGET
from pytest_aorta.plan import check_variables, trials_of
from pytest_aorta.plugin.failures import tail_of
from pytest_aorta.plugin.ordinary_tests import RunTrial, check_keywords, in_a_process, shortened
from pytest_aorta.registry import WorkloadEntry
from pytest_aorta.settings import RequestError
from pytest_aorta.trials.execution import ElasticOptions
from pytest_aorta.trials.loading import file_digest
from pytest_aorta.trials.records import Failure, RankRecord

if TYPE_CHECKING:
    from pytest_aorta.trials.result import ExitStatus, TrialResult


@dataclass(frozen=True, repr=False)
class TorchrunResult:
    """The result of a script under torchrun.

    Attributes:
        trial: the complete record, as in the trial file.
        ranks: records of the last attempt, by rank; a rank that never started has only its number.
        folder: holds the logs.
        returncode: torchrun's own; ``None`` when it was ended, for instance by the deadline.
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
        """The first failure, with its ``rank``; ``None`` if there is none."""
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
        """Standard output of a rank in the last attempt; raises ``IndexError`` if there is no such rank."""
        return self._read(rank, "stdout")

    def stderr(self, rank: int = 0) -> str:
        """Standard error of a rank in the last attempt; raises ``IndexError`` if there is no such rank."""
        return self._read(rank, "stderr")

    def _read(self, rank: int, stream: str) -> str:
        if not 0 <= rank < len(self.ranks):
            raise IndexError(f"there is no rank {rank}; the ranks are 0 to {len(self.ranks) - 1}")
        try:
            return self._log(rank, stream).read_text(errors="replace")
        except FileNotFoundError:  # it was never started
            return ""

    def _log(self, rank: int | None, stream: str) -> Path:
        recorded = None if rank is None else getattr(self.ranks[rank], stream)
        if recorded is not None:
            return self.folder.parent / str(recorded)
        return self.folder / (f"{stream}.log" if rank is None else f"rank_{rank}.{stream}.log")

    def __repr__(self) -> str:
        return f"<TorchrunResult {self.message.partition(chr(10))[0]}>"


#: Types of a script's arguments.
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
        mitigations: Sequence[str] | None = None,
        **unknown: NoReturn,
    ) -> TorchrunResult:
        """Run a script in separate processes and wait for their end. Its failure is in the result, not an exception.

        Args:
            script: a file, searched in ``cwd`` and then beside the test; or ``"-m"``, followed by a module's name.
            arguments: of the script.
            nproc: number of ranks.
            env: variables on top of the mitigations'.
            max_restarts: times that torchrun starts all ranks again after one has failed.
            cwd: working directory; pytest's own, if not given.
            timeout: deadline in seconds.
            mitigations: registered names, later ones win; default: those of the test's marker, else ``none``.

        Raises:
            FileNotFoundError, ModuleNotFoundError: there is no such script, module, or ``cwd``, or no torch.
            ValueError, TypeError: a wrong argument.
            RegistryError: an unknown name.
            LaunchModeError: pytest is a rank itself, or there are too few devices.
        """
        __tracebackhide__ = True  # pytest would show the arguments
        check_keywords("aorta_torchrun", self.__call__, unknown)
        nproc = valid.taken(valid.positive_int, nproc, "aorta_torchrun: nproc")
        max_restarts = valid.taken(valid.whole, max_restarts, "aorta_torchrun: max_restarts")
        timeout = valid.taken(valid.optional(valid.seconds), timeout, "aorta_torchrun: timeout")
        check_variables("aorta_torchrun(env=)", env or {})
        if self._run.environment != "local":
            raise RequestError(f"aorta_torchrun runs in the environment local, not {self._run.environment}")
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
            mitigations=(self._run.mitigation_set(mitigations, "aorta_torchrun: mitigations"),),
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
                path = str((base / script).absolute())
                return {"script": path}, path, arguments
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
