"""``pytest-aorta list`` with registrations that raise, lie, print or collide: each is shown, and no other is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.fake_distributions import install

from pytest_aorta.cli.main import main

#: Modules of mitigations and environments, each of which goes wrong in another way.
HOSTILE = {
    "raises": "raise RuntimeError('\x1b[31mno\\nway')",
    "leaves": "import sys; sys.exit(3)",
    "unspeakable": "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
    "prints": "print('{not json'); SET = {'A': '1'}",
    "explodes": (
        "from collections.abc import Mapping\n"
        "class M(Mapping):\n"
        "    def __len__(self): return 1\n"
        "    def __iter__(self): raise OSError('boom')\n"
        "    def __getitem__(self, key): raise OSError\n"
        "    def get(self, key, default=None): raise OSError('boom')\n"
        "SET = M()"
    ),
    "shapeless": "SET = 7",
}


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    entries = {name: f"hostile_{name}:SET" for name in HOSTILE}
    entry_points = {
        "aorta.workloads": {"gemm": "mine:Gemm", "dots": "..:Gone", "x": "gone:X", "two\x1b[2Jlines": "mine:X"},
        "aorta.mitigations": {**entries, "a,b": "hostile_prints:SET", "omp_1": "hostile_prints:SET"},
        "aorta.environments": entries,
    }
    modules = {f"hostile_{name}": source for name, source in HOSTILE.items()}
    install(monkeypatch, tmp_path, "hostile", entry_points, modules)
    result = CliRunner().invoke(main, ["list", "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return {kind: {entry["name"]: entry for entry in entries} for kind, entries in found.items()}


def test_what_raises_is_shown_with_what_it_raised(hostile: dict[str, Any]) -> None:
    for kind in ("mitigations", "environments"):
        said = {name: hostile[kind][name]["problem"] for name in HOSTILE}
        assert "RuntimeError: \x1b[31mno way" in said["raises"]
        assert "SystemExit: 3" in said["leaves"]
        assert "__str__ raised ValueError" in said["unspeakable"]
        assert "OSError: boom" in said["explodes"]
        assert "not int" in said["shapeless"]
    assert hostile["mitigations"]["prints"]["problem"] is None
    assert hostile["mitigations"]["prints"]["variables"] == {"A": "1"}
    assert {entry["source"] for name, entry in hostile["environments"].items() if name in HOSTILE} == {"hostile"}


def test_names_that_collide_or_cannot_be_typed_are_shown_as_such(hostile: dict[str, Any]) -> None:
    assert "offered twice, by" in hostile["workloads"]["gemm"]["problem"]
    assert "offered twice, by" in hostile["mitigations"]["omp_1"]["problem"]
    assert "separates names" in hostile["mitigations"]["a,b"]["problem"]
    assert "control character" in hostile["workloads"]["two\x1b[2Jlines"]["problem"]
    assert "there is no module" in hostile["workloads"]["x"]["problem"]
    assert hostile["workloads"]["dots"]["problem"]


def test_no_other_name_is_lost(hostile: dict[str, Any]) -> None:
    assert hostile["workloads"]["fsdp"]["problem"] is None
    usable = {name for name, entry in hostile["mitigations"].items() if entry["problem"] is None}
    assert len(usable) == 34 + len({"prints"})
    assert hostile["environments"]["local"]["problem"] is None
    assert set(hostile["collectors"]) >= {"amd_log", "numerics", "rocprof"}


def test_nothing_hostile_reaches_the_terminal(hostile: dict[str, Any]) -> None:
    result = CliRunner().invoke(main, ["list"])
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "{not json" not in result.stdout
    assert "broken: " in result.stdout
