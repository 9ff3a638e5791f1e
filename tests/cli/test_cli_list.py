"""``pytest-aorta list`` shows what can be asked for, and what is broken, without importing a workload."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.fake_distributions import install
from support.projects import MATRIX, command, project
from support.results import write_cell
from support.stage import Stage

from pytest_aorta.cli.main import main
from pytest_aorta.plan import Selection
from pytest_aorta.settings import SETTINGS, Setting


def listed(*arguments: str) -> dict[str, Any]:
    result = command("list", "--json", *arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return {kind: {entry["name"]: entry for entry in entries} for kind, entries in found.items()}


#: Commands, and what none of them imports, in this order.
LIGHT = (
    (
        ("--help", "--version", "list --help", "report --help", "compare --help", "list"),
        {"pydantic", "jinja2", "scipy"},
    ),
    (("status",), {"scipy", "aorta_workloads"}),
    (("ci-matrix --jobs 2", "merge old new", "env --json"), {"jinja2"}),
)

START = """
import sys
from pytest_aorta.cli.main import main

for commands, heavy in {light}:
    for words in commands:
        try:
            main(words.split(), standalone_mode=False)
        except SystemExit:
            pass
        found = {{*heavy, "torch", "numpy", "pytest", "_pytest"}} & set(sys.modules)
        assert not found, (words, found)
"""


def test_commands_start_light_and_a_closed_pipe_is_silent(stage: Stage) -> None:
    project(stage.path, MATRIX.replace('"tiny"', '"gemm"'))
    write_cell(stage.path / "old", ".")
    stage.write(start=START.format(light=LIGHT))
    before = stage.everything(".")
    started = stage.command(sys.executable, "start.py")
    assert started.ret == 0, started.errlines
    assert {path.split("/")[0] for path in set(stage.everything(".")) - set(before)} == {"new"}
    piped = stage.command("sh", "-c", f"{sys.executable} -m pytest_aorta show trials --short | true")
    assert piped.errlines == []


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
    lines = command("list", "mitigations").output.splitlines()
    assert lines[0] == "mitigations"
    shown = [" ".join(line.split()) for line in lines]
    assert "nccl_proto_simple pytest-aorta NCCL_PROTO=Simple read by NCCL, RCCL" in shown
    assert len(lines) == 1 + 35


def test_registry_files_are_listed_without_their_secrets(stage: Stage) -> None:
    stage.write_registry(
        mitigations={"quiet": {"NCCL_DEBUG": "WARN", "HF_TOKEN": "hunter2", "config.sizes": [[8, 8]]}},
        environments={"gone": {"venv": "no/such"}, "boxed": {"docker": "rocm/torch:7", "launcher": ["numactl", "-N0"]}},
    )
    shown = command("list", "mitigations", "environments", "--registry-file", "registry.json").output
    from_variable = CliRunner(env={"PYTEST_AORTA_REGISTRY_FILE": "registry.json"})
    assert from_variable.invoke(main, ["list", "mitigations", "environments"]).output == shown
    assert "hunter2" not in shown
    assert re.search(r"^  local +pytest-aorta +the Python of pytest$", shown, re.MULTILINE)
    assert re.search(r"^  none +pytest-aorta +no variables$", shown, re.MULTILINE)
    assert "sidecar:registry.json  NCCL_DEBUG=WARN HF_TOKEN=<redacted> config.sizes=[[8,8]]" in shown
    assert "docker=rocm/torch:7 launcher=numactl -N0" in shown
    assert "broken: there is no virtual environment in" in shown


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


def test_what_raises_is_shown_with_what_it_raised_and_does_nothing_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entries = {name: f"hostile_{name}:SET" for name in HOSTILE}
    entry_points = {
        "aorta.workloads": {
            "gemm": "mine:Gemm",
            "dots": "..:Gone",
            "x": "gone:X",
            "below": "hostile_leaves.sub:X",
            "two\x1b[2Jlines": "mine:X",
        },
        "aorta.mitigations": {**entries, "a,b": "hostile_prints:SET", "omp_1": "hostile_prints:SET"},
        "aorta.environments": entries,
    }
    modules = {f"hostile_{name}": source for name, source in HOSTILE.items()}
    install(monkeypatch, tmp_path, "hostile", entry_points, modules)
    found = listed()
    for kind in ("mitigations", "environments"):
        said = {name: found[kind][name]["problem"] for name in HOSTILE}
        assert "RuntimeError: \x1b[31mno way" in said["raises"]
        assert "SystemExit: 3" in said["leaves"]
        assert "__str__ raised ValueError" in said["unspeakable"]
        assert "OSError: boom" in said["explodes"]
        assert "not int" in said["shapeless"]
    assert found["workloads"]["x"]["problem"] == "there is no module gone"
    assert found["workloads"]["below"]["problem"] == "there is no module hostile_leaves.sub"
    assert found["mitigations"]["prints"]["problem"] is None
    assert found["mitigations"]["prints"]["variables"] == {"A": "1"}
    assert {entry["source"] for name, entry in found["environments"].items() if name in HOSTILE} == {"hostile"}
    shown = command("list")
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout
    assert "{not json" not in shown.stdout
    assert "broken: " in shown.stdout


WORKLOADS = """
import enum
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat

class Kind(enum.Enum):
    one = "one"
    two = "two"

class Typed:
    class Config(BaseModel):
        steps: int = Field(default=3, ge=1, le=9, description="how many")
        rate: NonNegativeFloat
        kinds: list[Kind] = Field(default_factory=lambda: [Kind.one])
        maybe: int | None = None
        named: str = Field(default="x", alias="call-it")
    def setup(self): pass
    def run(self): pass

class Opaque(Typed):
    class Config(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        thing: Typed = Typed()

class Plain(Typed):
    Config = None
    default_config = {"steps": 5, "name": "x", "nothing": None}

class Bare(Typed):
    Config = None
"""


@pytest.mark.parametrize("option", [option for option in SETTINGS if option.default], ids=lambda option: option.name)
def test_a_default_is_that_of_a_run_without_options(option: Setting) -> None:
    plain = Selection()
    field = {"environment": "environments", "max-trials": "max_trials"}.get(option.name, option.name.replace("-", "_"))
    places = (plain, plain.execution, plain.limits, plain.resources, plain.triage)
    [actual] = [getattr(place, field) for place in places if hasattr(place, field)]
    parsed = option.parse(option.default)
    parsed = parsed[0] if option.name == "slots" else parsed
    assert actual == ((parsed,) if option.repeat else parsed) or str(actual) == parsed


def test_options_of_a_workload_have_types_and_defaults(stage: Stage) -> None:
    stage.write(mine=WORKLOADS)
    found = listed("--workload", "mine.py:Typed")["options"]
    assert {name: (entry["takes"], entry["default"]) for name, entry in found.items()} == {
        "steps": ("int, ge=1, le=9", "3"),
        "rate": ("float, ge=0", None),
        "kinds": ("list[mine.Kind]", '["one"]'),
        "maybe": ("int | None", "null"),
        "call-it": ("str", '"x"'),
    }
    assert found["steps"]["help"] == "how many"
    assert found["steps"]["source"] == "file:mine.py"
    plain = listed("--workload", "mine.py:Plain")["options"]
    assert {name: (entry["takes"], entry["default"]) for name, entry in plain.items()} == {
        "steps": ("int", "5"),
        "name": ("str", '"x"'),
        "nothing": ("anything", "null"),
    }
    assert listed("--workload", "mine.py:Opaque")["options"]["thing"]["takes"] == "mine.Typed"
    assert listed("--workload", "mine.py:Bare")["options"] == {}
    assert "\n  steps (default 3)\n      how many; takes " in command("list", "--workload", "mine.py:Typed").output


def test_what_cannot_be_asked_is_one_line(stage: Stage) -> None:
    stage.write(leaves="print('text'); raise SystemExit(0)")
    for arguments, said in [
        (("colours",), "colours"),
        (("--registry-file", "no.json"), "no.json"),
        (("--workload", "leaves.py"), "as in leaves.py:CLASS"),
        (("--workload", "gemn"), "did you mean 'gemm'?"),
        (("--workload", "leaves.py:Gone"), "cannot be imported: SystemExit: 0"),
        (("mitigations", "--workload", "gemm"), "the options of one workload, and no mitigations"),
    ]:
        result = command("list", *arguments)
        assert result.exit_code == 2
        assert said in result.output
        assert "Traceback" not in result.output
