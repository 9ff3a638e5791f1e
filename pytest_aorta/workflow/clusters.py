"""Clusters, partitions and launchers: defined by the project, by the user, or built in.

The keys of ``clusters.toml`` and ``launchers.toml`` are Row's, with some of ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from pytest_aorta.workflow.finding import RecipeError
from pytest_aorta.workflow.recipe import Action, JobResources, NonNegativeWhole, PositiveWhole
from pytest_aorta.workflow.tables import OneOf, StrictTable, parse_tables

_SIZE = re.compile(r"(\d+)([KMGT]?)B?")
_MB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}

#: The launcher of clusters that a launcher says nothing of.
_DEFAULT = "default"


def _one_line(text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise ValueError("expected one line of printable text")
    return text


def _megabytes(size: str) -> float:
    match = _SIZE.fullmatch(size)
    if match is None:
        raise ValueError("expected a size such as 1970M or 5G")
    return int(match[1]) * _MB[match[2]]


def _size(text: str) -> str:
    _megabytes(text)
    return text


def _scheduler(text: str) -> str:
    if text not in ("bash", "slurm") and not text.startswith("psij:"):
        raise ValueError("expected 'bash', 'slurm', or one that PSI/J knows, such as 'psij:pbs'")
    return text


Line = Annotated[str, AfterValidator(_one_line)]
Size = Annotated[str, AfterValidator(_size)]


class Identify(OneOf):
    by_environment: tuple[str, str] | None = None
    always: bool | None = None

    def matches(self, environ: Mapping[str, str] = os.environ) -> bool:
        if self.by_environment is None:
            return bool(self.always)
        name, value = self.by_environment
        return environ.get(name) == value


class Partition(StrictTable):
    name: Line
    maximum_cpus_per_job: NonNegativeWhole | None = None
    require_cpus_multiple_of: PositiveWhole | None = None
    warn_cpus_not_multiple_of: PositiveWhole | None = None
    memory_per_cpu: Size | None = None
    cpus_per_node: PositiveWhole | None = None
    minimum_gpus_per_job: NonNegativeWhole | None = None
    maximum_gpus_per_job: NonNegativeWhole | None = None
    require_gpus_multiple_of: PositiveWhole | None = None
    warn_gpus_not_multiple_of: PositiveWhole | None = None
    memory_per_gpu: Size | None = None
    gpus_per_node: PositiveWhole | None = None
    prevent_auto_select: bool = False
    account_suffix: Line | None = None

    @model_validator(mode="before")
    @classmethod
    def _in_mb(cls, content: Any) -> Any:
        """``memory_per_cpu_mb = 1970`` is ``memory_per_cpu = "1970M"``."""
        if not isinstance(content, Mapping):
            return content
        names = {f"{name}_mb": name for name in ("memory_per_cpu", "memory_per_gpu")}
        return {names.get(key, key): f"{value}M" if key in names else value for key, value in content.items()}

    def reasons_against(self, resources: JobResources, directories: int) -> Iterator[str]:
        cpus, gpus = resources.total_cpus(directories), resources.total_gpus(directories)
        if self.maximum_cpus_per_job is not None and cpus > self.maximum_cpus_per_job:
            yield f"at most {self.maximum_cpus_per_job} CPUs"
        if self.require_cpus_multiple_of and cpus % self.require_cpus_multiple_of:
            yield f"CPUs in multiples of {self.require_cpus_multiple_of}"
        if self.minimum_gpus_per_job is not None and gpus < self.minimum_gpus_per_job:
            yield f"at least {self.minimum_gpus_per_job} GPUs"
        if self.maximum_gpus_per_job is not None and gpus > self.maximum_gpus_per_job:
            yield "no GPUs" if self.maximum_gpus_per_job == 0 else f"at most {self.maximum_gpus_per_job} GPUs"
        if self.require_gpus_multiple_of and (gpus == 0 or gpus % self.require_gpus_multiple_of):
            yield f"GPUs in multiples of {self.require_gpus_multiple_of}"
        for what, asked, most in self._memory(resources):
            if asked > _megabytes(most):
                yield f"at most {most} of memory per {what}, not {asked}M"

    def warnings(self, resources: JobResources, directories: int) -> Iterator[str]:
        """Wishes of the partition that a job ignores, such as a CPU count that fills whole nodes."""
        cpus, gpus = resources.total_cpus(directories), resources.total_gpus(directories)
        if self.warn_cpus_not_multiple_of and cpus % self.warn_cpus_not_multiple_of:
            yield f"partition {self.name}: {cpus} CPUs are no multiple of {self.warn_cpus_not_multiple_of}"
        if self.warn_gpus_not_multiple_of and (gpus == 0 or gpus % self.warn_gpus_not_multiple_of):
            yield f"partition {self.name}: {gpus} GPUs are no multiple of {self.warn_gpus_not_multiple_of}"
        for what, asked, most in self._memory(resources):
            if asked < _megabytes(most):
                yield f"partition {self.name}: {asked}M of memory per {what} is asked for, and {most} would be there"

    def _memory(self, resources: JobResources) -> Iterator[tuple[str, int, str]]:
        """Limited amounts of memory: the part they are for, the MB asked for, and the limit."""
        memory = resources.memory
        for what, asked, most in (
            ("CPU", memory and memory.per_cpu_mb, self.memory_per_cpu),
            ("GPU", memory and memory.per_gpu_mb, self.memory_per_gpu),
        ):
            if asked and most is not None:
                yield what, asked, most


class Cluster(StrictTable):
    """A cluster. Not from Row: ``array_throttle`` (jobs of an array that run at a time), ``maximum_array_size``."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    identify: Identify
    scheduler: Annotated[str, AfterValidator(_scheduler)]
    partition: tuple[Partition, ...] = ()
    submit_options: tuple[Line, ...] = ()
    slurm_gpus_per_task: Line = "--gpus-per-task="
    array_throttle: PositiveWhole | None = None
    maximum_array_size: PositiveWhole = 1000

    def choose_partition(self, name: str | None, resources: JobResources, directories: int) -> Partition | None:
        """The named partition, or the first one that accepts the job and may be selected automatically.

        ``None`` means the scheduler's default, where the cluster defines no partitions.
        """
        if not self.partition:
            return Partition(name=name) if name is not None else None
        candidates = [each for each in self.partition if not each.prevent_auto_select]
        if name is not None:
            candidates = [each for each in self.partition if each.name == name][:1]
            if not candidates:
                known = ", ".join(each.name for each in self.partition)
                raise RecipeError(f"cluster {self.name!r} has no partition {name!r}; there are {known}")
        reasons = []
        for each in candidates:
            against = [*each.reasons_against(resources, directories)]
            if not against:
                return each
            reasons.append(f"{each.name}: {'; '.join(against)}")
        manual = [each.name for each in self.partition if each.prevent_auto_select and name is None]
        if manual:
            reasons.append(f"only by name (submit_options.{self.name}.partition): {', '.join(manual)}")
        raise RecipeError(
            f"no partition of cluster {self.name!r} takes a job with {resources.total_cpus(directories)} CPUs and "
            f"{resources.total_gpus(directories)} GPUs: {' | '.join(reasons)}"
        )


class ClustersTable(StrictTable):
    cluster: tuple[Cluster, ...] = ()


class Launcher(StrictTable):
    """The words in front of a command: each part that is set, followed by its number, in this order."""

    executable: Line | None = None
    processes: Line | None = None
    threads_per_process: Line | None = None
    gpus_per_process: Line | None = None

    def words(self, resources: JobResources, directories: int) -> str:
        numbers = (
            (self.processes, resources.total_processes(directories)),
            (self.threads_per_process, resources.threads_per_process),
            (self.gpus_per_process, resources.gpus_per_process),
        )
        words = [f"{text}{number}" for text, number in numbers if text is not None and number is not None]
        return " ".join([*([self.executable] if self.executable else []), *words])


def launcher_prefix(action: Action, directories: int, launchers: Mapping[str, Launcher]) -> str:
    """The words of an action's launchers, in order, for a job over this many directories."""
    names, resources = action.table.launchers, action.table.resources
    unknown = [name for name in names if name not in launchers]
    if unknown:
        known = ", ".join(launchers)
        raise RecipeError(f"action {action.name!r}: no launcher is called {unknown[0]!r}; there are {known}")
    starting = [name for name in names if launchers[name].processes is not None]
    processes = resources.total_processes(directories)
    if len(starting) > 1:
        raise RecipeError(f"action {action.name!r}: launchers {' and '.join(starting)} both start processes; use one")
    if processes > 1 and not starting:
        raise RecipeError(
            f"action {action.name!r} has {processes} processes, and no launcher that starts them, such as mpi or srun"
        )
    return "".join(f"{launchers[name].words(resources, directories)} " for name in names)


@dataclass(frozen=True)
class Configuration:
    """All files on clusters and launchers. The first of ``folders`` that defines a name wins."""

    folders: Sequence[Path]

    @classmethod
    def of_project(cls, root: Path, environ: Mapping[str, str] = os.environ) -> Configuration:
        """Files in a recipe's folder, then in the user's: ``~/.config/pytest-aorta``, or in ``XDG_CONFIG_HOME``."""
        home = environ.get("HOME", os.path.expanduser("~"))
        return cls((root, Path(environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "pytest-aorta")))

    @cached_property
    def clusters(self) -> tuple[Cluster, ...]:
        """All clusters, in the order of their trial."""
        clusters: list[Cluster] = []
        for file, text in self._texts("clusters.toml"):
            clusters += parse_tables(ClustersTable, text, file).cluster
        return tuple(clusters)

    @cached_property
    def launchers(self) -> Mapping[str, Mapping[str, Launcher]]:
        """Definitions by launcher and cluster."""
        launchers: dict[str, dict[str, Launcher]] = {}
        for file, text in reversed(self._texts("launchers.toml")):
            for name, by_cluster in parse_tables(dict[str, dict[str, Launcher]], text, file).items():
                launchers[name] = {**launchers.get(name, {}), **by_cluster}
                if _DEFAULT not in launchers[name]:
                    missing = f"[{name}.{_DEFAULT}]"
                    raise RecipeError(f"launcher {name!r} has no table {missing}, which other clusters use", file)
        return launchers

    def cluster(self, name: str | None, environ: Mapping[str, str] = os.environ) -> Cluster:
        """The named cluster; without a name, the first that identifies this host."""
        if name is None:
            return next(cluster for cluster in self.clusters if cluster.identify.matches(environ))  # at least ``none``
        for cluster in self.clusters:
            if cluster.name == name:
                return cluster
        known = ", ".join(dict.fromkeys(cluster.name for cluster in self.clusters))
        raise RecipeError(f"no cluster is called {name!r}; there are {known}. clusters.toml says more of them")

    def launchers_on(self, cluster: str) -> dict[str, Launcher]:
        return {name: by_cluster.get(cluster, by_cluster[_DEFAULT]) for name, by_cluster in self.launchers.items()}

    def _texts(self, name: str) -> list[tuple[Path, str]]:
        texts = []
        for folder in self.folders:
            file = folder / name
            try:
                texts.append((file, file.read_text(encoding="utf-8")))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise RecipeError(f"cannot be read: {error}", file) from error
        built_in = Path(__file__).with_name(name)
        return [*texts, (built_in, built_in.read_text(encoding="utf-8"))]
