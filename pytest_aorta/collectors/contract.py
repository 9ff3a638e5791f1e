"""The contract of collectors: a class in the entry points ``aorta.collectors``, and a file that runs in each rank."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pytest_aorta.registry import Registry, RegistryError, one_line_of

#: Value of an option; the type of its default is what a text is read as.
Value = bool | int | float | str

#: Tells each Python process of a trial what to start; ``in_process/start.py`` reads it.
VARIABLE = "AORTA_COLLECT"

#: Folder of what collectors write, in the folder of a trial; below it, one for each collector.
FOLDER = "collect"

#: Said of the number of a step where nothing tells what the trial calls it.
COUNTED = " (counted from 1)"


class CollectorError(RegistryError):
    """A collector cannot be used as it was asked for; the message says why, and what would be valid."""


@dataclass(frozen=True)
class Context:
    """The trial that a collector observes.

    Attributes:
        folder: of this collector, in the folder of the trial. It is made before the trial starts.
        target: of the workload, ``module:Class`` or ``file.py:Class``.
        command: the words of a command; empty for a workload.
        python: interpreter that the trial runs in.
        environ: variables that the trial gets.
        nproc: number of ranks; ``None`` where the workload says it.
    """

    folder: Path
    target: str
    command: tuple[str, ...]
    python: str
    environ: Mapping[str, str] = field(repr=False)
    nproc: int | None = None


@dataclass(frozen=True)
class Preparation:
    """Changes to the start of a trial: variables, and words in front of its command.

    With either, each trial starts an interpreter of its own, as with ``--aorta-isolation spawn``.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True)
class CollectorSummary:
    """Findings in a trial: one sentence (empty for none), plain data, and files below the collector's folder."""

    sentence: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Sequence[Path] = ()


class Collector:
    """Base of collectors. The first line of the docstring is shown by ``pytest-aorta list collectors``.

    Attributes:
        options: name -> default and meaning; the first ones that a user gives are in ``given``, the rest at defaults.
        excludes: names of collectors that cannot be used together with this one.
        in_process: a file that each Python process of the trial loads by its path, which may be another interpreter
            than this one. It imports nothing but the standard library, and torch, and defines a class ``InProcess``:
            ``__init__(options, folder, rank)``, ``start()`` once torch is imported, ``step(number)`` after each step,
            ``stop()`` at the end; ``active`` becomes false in forks of the rank.
        needs_torch: false where it starts with the process, also of a program that never imports torch.
        first_step: the number that the trial gives its first step, 1 in a workload; ``None`` where nothing tells it.
            Known when ``summarize`` is called.
    """

    options: ClassVar[Mapping[str, tuple[Value, str]]] = {}
    excludes: ClassVar[frozenset[str]] = frozenset()
    in_process: ClassVar[Path | None] = None
    needs_torch: ClassVar[bool] = True
    first_step: int | None = 1

    def __init__(self, given: Mapping[str, Value]) -> None:
        self.given = {**{name: default for name, (default, _) in self.options.items()}, **given}

    def preparation(self, context: Context) -> Preparation:
        """Changes to the start of a trial; also called once before the first trial of a cell. Must make no files.

        Raises:
            CollectorError: it cannot be used for such a trial.
        """
        return Preparation()

    def step_name(self, number: int) -> str:
        """What the trial calls the step that ``InProcess`` has counted as ``number``, from 1; for sentences."""
        return step_name(number, self.first_step)

    def summarize(self, folder: Path, ranks: Sequence[int]) -> CollectorSummary:
        """Summarize the files, after the processes of the trial are gone; ``ranks``: ranks that had started."""
        return CollectorSummary()


def step_name(number: int, first_step: int | None) -> str:
    """``step 3`` for ``number`` 4 of a program whose first step is 0."""
    return f"step {number}{COUNTED}" if first_step is None else f"step {number + first_step - 1}"


def load(texts: Iterable[str], registry: Registry | None = None) -> dict[str, Collector]:
    """The collectors of requests like ``numerics:threshold=1e4:window=5``, by name.

    Raises:
        CollectorError: a name given twice, an unknown option, a value that cannot be read, a pair that excludes.
        RegistryError: there is no such collector, or it cannot be loaded.
    """
    registry = registry or Registry.load(tolerant=True)
    collectors: dict[str, Collector] = {}
    for text in texts:
        name, *pairs = text.split(":")
        cls = collector_class(registry.collector(name))
        if name in collectors:
            raise CollectorError(f"--aorta-collect: {name} is given twice")
        collectors[name] = cls(dict(_option(name, cls, pair) for pair in pairs))
    for name, collector in collectors.items():
        for other in sorted(collector.excludes & collectors.keys()):
            raise CollectorError(f"--aorta-collect: {name} and {other} exclude each other; use one of them at a time")
    return collectors


def collector_class(target: str) -> type[Collector]:
    """Import a collector; raises ``CollectorError`` whatever that raises."""
    module, _, name = target.partition(":")
    try:
        cls: Any = getattr(importlib.import_module(module), name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may call sys.exit()
        raise CollectorError(f"the collector {target} cannot be imported: {one_line_of(error)}") from error
    if not (isinstance(cls, type) and issubclass(cls, Collector)):
        raise CollectorError(f"{target} is no subclass of {__name__}.Collector")
    return cls


def one_line(cls: type[Collector]) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


def _option(name: str, cls: type[Collector], pair: str) -> tuple[str, Value]:
    key, equals, text = pair.partition("=")
    valid = ", ".join(f"{each}={_spelled(default)}" for each, (default, _) in cls.options.items()) or "none"
    if key not in cls.options:
        raise CollectorError(f"--aorta-collect: {name} has no option {key!r}; its options and defaults: {valid}")
    default = cls.options[key][0]
    if isinstance(default, bool):
        if equals and text.lower() not in ("true", "false", "1", "0"):
            raise CollectorError(f"--aorta-collect {name}:{pair}: expected {key}=true or {key}=false")
        return key, not equals or text.lower() in ("true", "1")
    try:
        return key, type(default)(text)
    except ValueError:
        kind = {int: "a whole number", float: "a number"}[type(default)]
        raise CollectorError(f"--aorta-collect {name}:{pair}: expected {kind}, as in {key}={default}") from None


def _spelled(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def variable(collectors: Mapping[str, Collector], folder: Path) -> dict[str, str]:
    """The variable that makes Python processes of a trial start its collectors; ``folder``: of the trial."""
    here = Path(__file__).with_name("in_process")
    asked = [
        # The package may lie elsewhere in a container: its own files are named relative to start.py.
        {
            "name": name,
            "options": collector.given,
            "file": str(file.name if file.parent == here else file),
            "needs_torch": collector.needs_torch,
        }
        for name, collector in collectors.items()
        if (file := collector.in_process) is not None
    ]
    return {VARIABLE: json.dumps({"folder": str(folder / FOLDER), "collectors": asked})} if asked else {}


def print_summary(asked: Mapping[str, Any], to_plain: Callable[[object], object]) -> None:
    """In a process of its own: print a summary as JSON; what the collector itself prints goes to standard error."""
    output, sys.stdout = sys.stdout, sys.stderr
    collector = collector_class(f"{asked['module']}:{asked['name']}")(asked["given"])
    collector.first_step = asked["first_step"]
    summary = collector.summarize(Path(asked["folder"]), asked["ranks"])
    data, artifacts = to_plain(dict(summary.data)), [*map(str, summary.artifacts)]
    plain = {"sentence": summary.sentence, "data": data, "artifacts": artifacts}
    json.dump(plain, output)  # a NaN among the data is read back as one
