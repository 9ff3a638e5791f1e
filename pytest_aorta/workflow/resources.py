"""What the jobs of an action ask for, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator

from pytest_aorta.workflow.tables import OneOf, PositiveWhole, Table

_HOUR = timedelta(hours=1)


def _no_boolean(value: object) -> object:
    """What pydantic is to read as a duration; it would take ``true`` for a second."""
    if isinstance(value, bool):
        raise ValueError('expected a duration such as "02:30:00"')
    return value


Duration = Annotated[timedelta, BeforeValidator(_no_boolean)]


class Processes(OneOf):
    """Number of processes, of a job or of each of its directories: one of the two."""

    per_submission: PositiveWhole | None = None
    per_directory: PositiveWhole | None = None


class Walltime(OneOf):
    """Time limit of a job or for each of its directories, one of the two: "02:30:00", "1 day, 12:00:00"."""

    per_submission: Duration | None = None
    per_directory: Duration | None = None


class Memory(OneOf):
    """Memory in MB, for each core or for each GPU: one of the two."""

    per_cpu_mb: PositiveWhole | None = None
    per_gpu_mb: PositiveWhole | None = None


@dataclass(frozen=True)
class Cost:
    """Core hours and GPU hours; a job that asks for GPUs is counted in GPU hours only, as in Row."""

    cpu_hours: float = 0.0
    gpu_hours: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu_hours + other.cpu_hours, self.gpu_hours + other.gpu_hours)

    def __str__(self) -> str:
        parts = [(self.cpu_hours, "CPU-hours"), (self.gpu_hours, "GPU-hours")]
        return " and ".join(f"{_shown(hours)} {unit}" for hours, unit in parts if hours) or "0 CPU-hours"


def _shown(hours: float) -> str:
    """Whole hours; of few, two digits that matter."""
    return f"{hours:,.0f}" if hours >= 10 or hours == round(hours) else f"{hours:.2g}"


class Resources(Table):
    """What a job of an action asks for; keys that are left out are not asked for, or have Row's defaults."""

    processes: Processes | None = None
    threads_per_process: PositiveWhole | None = None
    gpus_per_process: PositiveWhole | None = None
    memory: Memory | None = None
    walltime: Walltime | None = None

    def total_processes(self, directories: int) -> int:
        """Processes of a job over so many directories; 1 by default."""
        if self.processes is None:
            return 1
        return self.processes.per_submission or (self.processes.per_directory or 0) * directories

    def total_cpus(self, directories: int) -> int:
        """Cores of a job over so many directories."""
        return self.total_processes(directories) * (self.threads_per_process or 1)

    def total_gpus(self, directories: int) -> int:
        """GPUs of a job over so many directories."""
        return self.total_processes(directories) * (self.gpus_per_process or 0)

    def total_walltime(self, directories: int) -> timedelta:
        """Time limit of a job over so many directories; an hour for each by default."""
        if self.walltime is None:
            return _HOUR * directories
        if self.walltime.per_submission is not None:
            return self.walltime.per_submission
        return (self.walltime.per_directory or _HOUR) * directories

    def cost(self, directories: int) -> Cost:
        """What a job over so many directories costs at most."""
        hours = self.total_processes(directories) * (self.total_walltime(directories) / _HOUR)
        if self.gpus_per_process is not None:
            return Cost(gpu_hours=hours * self.gpus_per_process)
        return Cost(cpu_hours=hours * (self.threads_per_process or 1))
