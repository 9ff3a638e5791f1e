"""What ``clusters.toml`` and ``launchers.toml`` say; the keys are Row's, with some of ours."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pytest_aorta.workflow.tables import NonNegativeWhole, OneOf, PositiveWhole, Table

_SIZE = re.compile(r"(\d+)([KMGT]?)B?")
_MB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}


def _one_line(text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise ValueError("expected one line of printable text")
    return text


def _size(text: str) -> str:
    if _SIZE.fullmatch(text) is None:
        raise ValueError("expected a size such as 1970M or 5G")
    return text


Line = Annotated[str, AfterValidator(_one_line)]
Size = Annotated[str, AfterValidator(_size)]


def megabytes(size: str) -> float:
    """A size of SLURM's, ``5G``, in MB (2^20 bytes)."""
    found = _SIZE.fullmatch(size)
    assert found is not None
    return int(found[1]) * _MB[found[2]]


class Identify(OneOf):
    """How a cluster is recognised: by the value of a variable, or always (``false``: only by its name)."""

    by_environment: tuple[str, str] | None = None
    always: bool | None = None

    def matches(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Whether this is the cluster."""
        if self.by_environment is None:
            return bool(self.always)
        name, value = self.by_environment
        return environ.get(name) == value


class Partition(Table):
    """A partition: which jobs it takes, and what it needs to be said of them."""

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


class Cluster(Table):
    """A cluster.

    Of our own are ``array_throttle``, how many jobs of an array run at a time, and ``maximum_array_size``.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    identify: Identify
    scheduler: Literal["bash", "slurm"]
    partition: tuple[Partition, ...] = ()
    submit_options: tuple[Line, ...] = ()
    array_throttle: PositiveWhole | None = None
    maximum_array_size: PositiveWhole = 1000


class ClustersTable(Table):
    """``clusters.toml``."""

    cluster: tuple[Cluster, ...] = ()


class Launcher(Table):
    """What a command begins with: each part that is set, followed by its number, in this order."""

    executable: Line | None = None
    processes: Line | None = None
    threads_per_process: Line | None = None
    gpus_per_process: Line | None = None
