"""``pytest-aorta list`` shows what can be asked for, and what is broken, without importing a workload."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.fake_distributions import install
from support.stage import Stage

from pytest_aorta.cli.main import main


def listed(*arguments: str) -> dict[str, Any]:
    result = run("list", "--json", *arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return {kind: {entry["name"]: entry for entry in entries} for kind, entries in found.items()}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    "arguments", ["--help", "--version", "list --help", "report --help", "compare --help", "list", "list options"]
)
def test_the_command_starts_light(stage: Stage, arguments: str) -> None:
    result = stage.command(sys.executable, "-X", "importtime", "-m", "pytest_aorta", *arguments.split())
    assert result.ret == 0
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in result.errlines if "import time:" in line}
    assert "click" in imported
    assert imported & {"torch", "pydantic", "numpy", "scipy", "pytest", "_pytest", "matplotlib", "jinja2"} == set()
    assert not stage.everything(".")


def test_names_of_all_kinds_are_listed_with_what_they_stand_for() -> None:
    found = listed()
    assert found["workloads"]["gemm"] == {
        "name": "gemm",
        "target": "aorta_workloads.gemm:Gemm",
        "summary": "Products of many shapes, types and layouts, every element checked.",
        "source": "pytest-aorta",
        "problem": None,
    }
    omp_1 = found["mitigations"]["omp_1"]
    assert omp_1["variables"] == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    assert omp_1["read_by"] == "libgomp, MKL, torch"
    assert found["environments"]["local"]["kind"] == "local"
    assert set(found["collectors"]) >= {"amd_log", "numerics", "rocprof"}
    lines = run("list", "mitigations").output.splitlines()
    assert lines[0] == "mitigations"
    shown = [" ".join(line.split()) for line in lines]
    assert "nccl_proto_simple pytest-aorta NCCL_PROTO=Simple read by NCCL, RCCL" in shown
    assert len(lines) == 1 + 35


def test_what_is_broken_is_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry_points = {
        "aorta.workloads": {"gone": "not_there.at_all:Gone", "good": "good:Good", "below": "good.sub:Good"},
        "aorta.mitigations": {"explodes": "explodes:SET"},
        "aorta.environments": {"shapeless": "good"},
    }
    modules = {
        "good": "raise SystemExit('a workload was imported')",
        "explodes": "raise RuntimeError('\x1b[31mno\\nway')",
    }
    install(monkeypatch, tmp_path, "broken-things", entry_points, modules)

    found = listed()
    assert found["workloads"]["gone"]["problem"] == "there is no module not_there.at_all"
    assert found["workloads"]["good"]["problem"] is None
    assert found["workloads"]["below"]["problem"] == "there is no module good.sub"
    assert "RuntimeError" in found["mitigations"]["explodes"]["problem"]
    assert "module:attribute" in found["environments"]["shapeless"]["problem"]
    shown = run("list").output
    assert "broken: there is no module not_there.at_all" in shown
    assert "\x1b" not in shown


def test_registry_files_are_listed_without_their_secrets(stage: Stage) -> None:
    stage.write_registry(
        mitigations={"quiet": {"NCCL_DEBUG": "WARN", "HF_TOKEN": "hunter2"}},
        environments={"gone": {"venv": "no/such"}, "boxed": {"docker": "rocm/torch:7", "launcher": ["numactl", "-N0"]}},
    )
    shown = run("list", "mitigations", "environments", "--registry-file", "registry.json").output
    from_variable = CliRunner(env={"PYTEST_AORTA_REGISTRY_FILE": "registry.json"})
    assert from_variable.invoke(main, ["list", "mitigations", "environments"]).output == shown
    assert "hunter2" not in shown
    assert re.search(r"^  local +pytest-aorta +the Python of pytest$", shown, re.MULTILINE)
    assert re.search(r"^  none +pytest-aorta +no variables$", shown, re.MULTILINE)
    assert "sidecar:registry.json  NCCL_DEBUG=WARN HF_TOKEN=<redacted>" in shown
    assert "docker=rocm/torch:7 launcher=numactl -N0" in shown
    assert "broken: there is no virtual environment in" in shown


def test_a_wrong_request_is_one_line_and_exit_code_2(stage: Stage) -> None:
    for arguments in [("list", "colours"), ("list", "--registry-file", "no.json"), ("lists",)]:
        result = run(*arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.output
        assert arguments[-1] in result.output
