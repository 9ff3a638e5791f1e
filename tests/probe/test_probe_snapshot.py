"""Snapshots are always there: whole, plain_data, in time, and whatever is broken."""

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
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from pytest_aorta.probe import collect
from pytest_aorta.probe.collect import EnvSnapshot, StaticEnv, collect_end, collect_env, collect_static
from pytest_aorta.probe.guard import plain_data


@pytest.fixture(scope="module")
def static() -> StaticEnv:
    return collect_static()


def test_an_intact_machine_gives_a_whole_snapshot_that_json_and_pickle_carry(static: StaticEnv) -> None:
    snapshot = collect_env(static)
    assert (snapshot.partial, snapshot.partial_reasons) == (False, [])
    assert snapshot.host["hostname"] == platform.node()
    assert snapshot.host["memory_total_bytes"] > snapshot.process["memory_available_bytes"] > 0
    assert snapshot.python["executable"] == sys.executable
    assert snapshot.packages["versions"]["pytest"] == pytest.__version__
    assert (snapshot.process["pid"], snapshot.process["cwd"]) == (os.getpid(), os.getcwd())
    assert pickle.loads(pickle.dumps(static)) == static
    data = {**snapshot.to_dict(), "end": collect_end()}
    assert json.loads(json.dumps(data, allow_nan=False, ensure_ascii=False).encode("utf-8")) == data


def broken(*arguments: object, **options: object) -> NoReturn:
    raise OSError("broken for the test")


def test_a_fork_reports_itself_and_pays_for_no_import_and_no_process(
    static: StaticEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.environ["MY_SWITCH"] = "on"
            monkeypatch.setattr(subprocess, "Popen", broken)
            monkeypatch.setattr(os, "fork", broken)
            before = set(sys.modules)
            snapshot, end = collect_env(static, overlay=["MY_SWITCH"]).to_dict(), collect_end()
            with os.fdopen(write, "w") as pipe:
                json.dump([snapshot, end["partial_reasons"], sorted(set(sys.modules) - before)], pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        seen, reasons, imported = json.load(pipe)
    os.waitpid(pid, 0)
    assert (seen["process"]["pid"], seen["process"]["ppid"]) == (pid, os.getpid())
    assert seen["env_vars"]["MY_SWITCH"] == "on"
    assert {name: seen[name] for name in static.sections} == static.sections
    assert "MY_SWITCH" not in os.environ
    assert (seen["partial_reasons"], reasons, imported) == ([], [], [])


def test_what_is_not_there_does_not_make_a_snapshot_partial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("HOME", raising=False)
    snapshot = collect_env(collect_static(tmp_path / "no repository" / "workload.py"))
    assert snapshot.git is None
    assert snapshot.partial_reasons == []


@pytest.mark.parametrize(
    ("owner", "name", "place"),
    [
        (psutil, "virtual_memory", "host.memory_total_bytes"),
        (importlib.metadata, "distributions", "packages"),
        (subprocess, "Popen", "git.status"),
        (collect, "runtime_context", "runtime_context"),
        (collect, "accelerator", "accelerator"),
        (collect, "process", "process"),
        (collect, "recorded_variables", "env_vars"),
    ],
)
def test_a_broken_probe_is_named_and_never_raises(
    owner: object, name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(owner, name, broken)
    snapshot = collect_env(collect_static(tmp_path))
    monkeypatch.undo()
    assert snapshot.partial
    assert f"{place}: OSError: broken for the test" in snapshot.partial_reasons


def test_what_json_cannot_hold_is_made_plain() -> None:
    class Text(str):
        __slots__ = ()

    found = plain_data(
        {1: (Text("a"), {2, 1}), "nan": float("nan"), "inf": float("-inf"), "other": ValueError("x"), "no": None}
    )
    assert found == {"1": ["a", [1, 2]], "nan": "NaN", "inf": "-Infinity", "other": "x", "no": None}
    assert type(found["1"][0]) is str


def test_the_page_has_every_field_of_a_snapshot(static: StaticEnv) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "reference" / "probe.md").read_text()
    named = set(re.findall(r"[a-z_]\w+", " ".join(re.findall(r"`([^`]+)`", docs))))
    fields = {*collect_end(), *(each.name for each in dataclasses.fields(EnvSnapshot)), *static.sections["host"]}
    assert fields - named <= {"hostname"}
