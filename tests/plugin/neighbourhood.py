"""A bench on which the workloads of ``neighbours.py`` are offered, and what its tests have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from conftest import Bench

NEIGHBOURS = Path(__file__).with_name("neighbours.py")


def settle(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Offer them; leases are not those of other tests."""
    (bench.path / "notes").mkdir()
    monkeypatch.setenv("NEIGHBOURS", str(bench.path / "notes"))
    monkeypatch.setenv("PYTEST_AORTA_LEASES_DIR", str(bench.path / "leases"))
    bench.copy(NEIGHBOURS)
    names = ("tells", "meets", "stays", "fails", "waits", "holds", "keeps", "pair")
    bench.register(**{name: f"neighbours:{name.capitalize()}" for name in names})
    return bench


def workloads(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--aorta-workload", name))


def notes(bench: Bench, kind: str) -> int:
    """How many notes of a kind the trials have left."""
    return len(list((bench.path / "notes").glob(f"{kind}_*")))


def leave(bench: Bench, kind: str) -> None:
    """Leave a note for the trials."""
    (bench.path / "notes" / f"{kind}_").touch()


def metrics(bench: Bench) -> list[dict[str, Any]]:
    """Of all trials."""
    return [trial["result"]["metrics"] for trial in bench.trials().values()]
