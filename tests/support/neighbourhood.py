"""A stage on which workloads that care what runs beside them are offered, and what its tests have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.stage import Stage

_WORKLOADS = Path(__file__).parents[1] / "plugin"


def settle(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    (stage.path / "notes").mkdir()
    monkeypatch.setenv("NEIGHBOURS", str(stage.path / "notes"))
    monkeypatch.setenv("PYTEST_AORTA_LEASES_DIR", str(stage.path / "leases"))
    stage.copy(_WORKLOADS / "neighbours.py")
    names = ("tells", "meets", "stays", "fails", "waits", "holds", "keeps", "pair")
    stage.register(**{name: f"neighbours:{name.capitalize()}" for name in names})
    return stage


def offer_faulty(stage: Stage) -> Stage:
    stage.copy(_WORKLOADS / "faulty_workloads.py")
    stage.register(
        passes="faulty_workloads:Passes",
        raises="faulty_workloads:RaisesInRun",
        crashes="faulty_workloads:SegfaultsInRun",
        hangs="faulty_workloads:HangsPolitelyInRun",
        unset="faulty_workloads:RaisesInSetup",
        unclean="faulty_workloads:RaisesInCleanup",
    )
    return stage


@pytest.fixture
def beside(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return settle(stage, monkeypatch)


@pytest.fixture
def faulty(stage: Stage) -> Stage:
    return offer_faulty(stage)


def workloads(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--aorta-workload", name))


def notes(stage: Stage, kind: str) -> int:
    return len(list((stage.path / "notes").glob(f"{kind}_*")))


def leave(stage: Stage, kind: str) -> None:
    (stage.path / "notes" / f"{kind}_").touch()


def metrics(stage: Stage) -> list[dict[str, Any]]:
    return [trial["result"]["metrics"] for trial in stage.trials().values()]
