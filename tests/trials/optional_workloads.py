"""Workloads with options of every kind. Not in a test module, whose workloads would be trials."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pydantic

from pytest_aorta import Workload, WorkloadResult


class Typed(Workload):
    class Config(pydantic.BaseModel):
        steps: int = 10
        lr: float = 0.1
        dtype: Literal["float32", "bfloat16"] = "float32"
        compile: bool = False
        sizes: list[int] = [64]
        name: str = "x"
        limit: int | None = None
        out: Path = Path("/tmp")
        schedule: dict[str, float] = {}

    def setup(self) -> None: ...

    def run(self) -> WorkloadResult:
        return WorkloadResult(True)


class WithoutSteps(Typed):
    class Config(pydantic.BaseModel):
        size: int = 1


class Open(Typed):
    class Config(pydantic.BaseModel, extra="allow"):
        size: int = 1


class Aliased(Typed):
    class Config(pydantic.BaseModel):
        learning_rate: float = pydantic.Field(0.1, alias="lr")


class Untyped(Workload):
    """As most classes are that know nothing of this package."""

    default_config = {"steps": 100, "dtype": "float32"}

    def setup(self) -> None: ...

    def run(self) -> WorkloadResult:
        return WorkloadResult(True)


class Bare:
    def setup(self) -> None: ...

    def run(self) -> WorkloadResult:
        return WorkloadResult(True)
