"""Snapshots are always there: whole, plain, in time, and whatever is broken."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pickle
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from pytest_aorta.probe import collect as collect_module
from pytest_aorta.probe import collect as static_module
from pytest_aorta.probe.collect import EnvSnapshot, StaticEnv, collect_end, collect_env, collect_static
from pytest_aorta.probe.guard import plain


@pytest.fixture(scope="module")
def static() -> StaticEnv:
    return collect_static()


def test_an_intact_machine_gives_a_whole_snapshot(static: StaticEnv) -> None:
    snapshot = collect_env(static)
    assert snapshot.partial_reasons == []
    assert not snapshot.partial
    assert snapshot.host["hostname"] == platform.node()
    assert snapshot.host["memory_total_bytes"] > snapshot.process["memory_available_bytes"] > 0
    assert snapshot.python["executable"] == sys.executable
    assert snapshot.packages["versions"]["pytest"] == pytest.__version__
    assert snapshot.process["pid"] == os.getpid()
    assert snapshot.process["cwd"] == os.getcwd()


def test_a_fork_reports_itself_and_the_machine_of_its_zygote(static: StaticEnv) -> None:
    def child() -> dict[str, Any]:
        os.environ["MY_SWITCH"] = "on"
        return collect_env(static, overlay=["MY_SWITCH"]).to_dict()

    seen = in_a_fork(child)
    assert seen["process"]["ppid"] == os.getpid()
    assert seen["process"]["pid"] != os.getpid()
    assert seen["env_vars"]["MY_SWITCH"] == "on"
    assert {name: seen[name] for name in static.sections} == static.sections
    assert "MY_SWITCH" not in os.environ


def test_a_trial_pays_for_no_import_and_no_process(static: StaticEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    def child() -> dict[str, Any]:
        monkeypatch.setattr(subprocess, "Popen", broken)
        monkeypatch.setattr(os, "fork", broken)
        before = set(sys.modules)
        snapshot, end = collect_env(static), collect_end()
        return {
            "reasons": snapshot.partial_reasons + end["partial_reasons"],
            "imported": sorted(set(sys.modules) - before),
        }

    assert in_a_fork(child) == {"reasons": [], "imported": []}


def test_the_static_part_crosses_a_process_boundary(static: StaticEnv) -> None:
    assert pickle.loads(pickle.dumps(static)) == static
    assert json.loads(json.dumps(static.sections)) == static.sections


def test_what_is_not_there_does_not_make_a_snapshot_partial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("HOME", raising=False)
    snapshot = collect_env(collect_static(tmp_path / "no repository" / "workload.py"))
    assert snapshot.git is None
    assert snapshot.partial_reasons == []


def broken(*arguments: object, **options: object) -> NoReturn:
    raise OSError("broken for the test")


@pytest.mark.parametrize(
    ("owner", "name", "reason"),
    [
        (psutil, "virtual_memory", "host.memory_total_bytes: OSError: broken for the test"),
        (importlib.metadata, "distributions", "packages: OSError: broken for the test"),
        (subprocess, "Popen", "git.status: OSError: broken for the test"),
        (static_module, "runtime_context", "runtime_context: OSError: broken for the test"),
        (static_module, "accelerator", "accelerator: OSError: broken for the test"),
        (collect_module, "process", "process: OSError: broken for the test"),
        (collect_module, "recorded_variables", "env_vars: OSError: broken for the test"),
    ],
)
def test_a_broken_probe_is_named_and_never_raises(
    owner: object, name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(owner, name, broken)
    snapshot = collect_env(collect_static(tmp_path))
    monkeypatch.undo()
    assert snapshot.partial
    assert reason in snapshot.partial_reasons
    assert EnvSnapshot.from_dict(snapshot.to_dict()) == snapshot


def in_a_fork(child: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with os.fdopen(write, "w") as pipe:
                json.dump(child(), pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_snapshot_survives_json_without_loss() -> None:
    snapshot = collect_env(collect_static())
    text = json.dumps(snapshot.to_dict(), allow_nan=False, ensure_ascii=False).encode("utf-8")
    assert EnvSnapshot.from_dict(json.loads(text)) == snapshot


def test_another_major_version_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"schema_version of an environment is '2\.0'.*reads 1\.x"):
        EnvSnapshot.from_dict({**EnvSnapshot.unavailable("x").to_dict(), "schema_version": "2.0"})


def test_what_json_cannot_hold_is_made_plain() -> None:
    class Text(str):
        __slots__ = ()

    found = plain(
        {1: (Text("a"), {2, 1}), "nan": float("nan"), "inf": float("-inf"), "other": ValueError("x"), "no": None}
    )
    assert found == {"1": ["a", [1, 2]], "nan": "NaN", "inf": "-Infinity", "other": "x", "no": None}
    assert type(found["1"][0]) is str


DOCS = (Path(__file__).parents[2] / "docs" / "probe.md").read_text()


def test_the_comparison_has_every_field_of_the_probe_of_torch() -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).with_name("utils").joinpath("collect_env.py").read_text()
    fields = re.search(r'"SystemEnv",\s*\[(.*?)\]', source, re.DOTALL)
    assert fields is not None
    assert [name for name in re.findall(r'"(\w+)"', fields[1]) if f"`{name}`" not in DOCS] == []


def test_the_comparison_has_every_field_of_a_snapshot() -> None:
    named = set(re.findall(r"[a-z_]\w+", " ".join(re.findall(r"`([^`]+)`", DOCS))))
    static = collect_static()
    fields = {*collect_end(), *(each.name for each in dataclasses.fields(EnvSnapshot))}
    fields |= {*static.sections["host"]} - {"hostname"}
    assert fields - named == set()
