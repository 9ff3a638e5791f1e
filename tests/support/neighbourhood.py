"""A stage on which workloads that care what runs beside them are offered, and what its tests have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.stage import Stage

_WORKLOADS = Path(__file__).parents[1] / "plugin"


#: What runs on a stage would find, or hand on, of what these tests run on.
_NOT_OURS = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
)


@pytest.fixture
def beside(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage that offers the workloads of ``neighbours.py``; leases are not those of other tests."""
    for name in _NOT_OURS:
        monkeypatch.delenv(name, raising=False)
    (stage.path / "notes").mkdir()
    monkeypatch.setenv("NEIGHBOURS", str(stage.path / "notes"))
    monkeypatch.setenv("PYTEST_AORTA_LEASES_DIR", str(stage.path / "leases"))
    stage.copy(_WORKLOADS / "neighbours.py")
    names = ("tells", "meets", "stays", "fails", "waits", "holds", "keeps", "pair")
    stage.register(**{name: f"neighbours:{name.capitalize()}" for name in names})
    return stage


@pytest.fixture
def faulty(stage: Stage) -> Stage:
    stage.copy(_WORKLOADS / "faulty_workloads.py")
    stage.register(passes="faulty_workloads:Passes", raises="faulty_workloads:RaisesInRun")
    return stage


def workloads(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--aorta-workload", name))


def notes(stage: Stage, kind: str) -> int:
    return len(list((stage.path / "notes").glob(f"{kind}_*")))


def leave(stage: Stage, kind: str) -> None:
    (stage.path / "notes" / f"{kind}_").touch()


def metrics(stage: Stage) -> list[dict[str, Any]]:
    return [trial["result"]["metrics"] for trial in stage.trials().values()]
