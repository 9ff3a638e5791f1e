"""``pytest-aorta list options``: those of pytest, and those that a workload declares, with types and defaults."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.stage import Stage

from pytest_aorta.cli.main import main
from pytest_aorta.plan import Selection
from pytest_aorta.settings import SETTINGS, Setting

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


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["list", *arguments])


def listed(*arguments: str) -> dict[str, dict[str, Any]]:
    result = run("--json", *arguments)
    assert result.exit_code == 0, result.output
    return {entry["name"]: entry for entry in json.loads(result.stdout)["options"]}


def test_every_option_of_pytest_is_listed_with_its_three_spellings() -> None:
    found = listed("options")
    assert list(found) == [option.flag for option in SETTINGS]
    assert found["--aorta-trials"] == {
        "name": "--aorta-trials",
        "source": "pytest-aorta",
        "metavar": "N",
        "takes": "a whole number of at least 1",
        "default": "1",
        "repeat": False,
        "ini": "aorta_trials",
        "variable": "PYTEST_AORTA_TRIALS",
        "help": "trials per cell",
    }
    assert found["--aorta-isolation"]["takes"] == "one of fork, spawn, none"
    assert "max_restarts" in found["--aorta-elastic"]["takes"]
    assert found["--aorta-resume"]["takes"] == "nothing"
    assert "  aorta_grace SEC (default 5)\n" in run("options").output


@pytest.mark.parametrize("option", [option for option in SETTINGS if option.default], ids=lambda option: option.name)
def test_a_default_is_that_of_a_run_without_options(option: Setting) -> None:
    plain = Selection()
    field = {"environment": "environments", "max-trials": "max_trials"}.get(option.name, option.name.replace("-", "_"))
    places = (plain, plain.execution, plain.limits, plain.resources, plain.triage)
    [actual] = [getattr(place, field) for place in places if hasattr(place, field)]
    parsed = option.parse(option.default)
    parsed = parsed[0] if option.name == "slots" else parsed
    assert actual == ((parsed,) if option.repeat else parsed) or str(actual) == parsed


def test_what_an_option_takes_is_said_in_words() -> None:
    assert {
        option.name: option.takes for option in SETTINGS if "''" in option.takes or option.takes == "any text"
    } == {}


def test_options_of_a_workload_have_types_and_defaults(stage: Stage) -> None:
    stage.write(mine=WORKLOADS)
    found = listed("--workload", "mine.py:Typed")
    assert {name: (entry["takes"], entry["default"]) for name, entry in found.items()} == {
        "steps": ("whole number at least 1 and at most 9", "3"),
        "rate": ("number at least 0", None),
        "kinds": ("list of (one of one, two)", '["one"]'),
        "maybe": ("whole number, or null", "null"),
        "call-it": ("text", '"x"'),
    }
    assert found["steps"]["help"] == "how many"
    assert found["steps"]["source"] == "file:mine.py"
    plain = listed("--workload", "mine.py:Plain")
    assert {name: (entry["takes"], entry["default"]) for name, entry in plain.items()} == {
        "steps": ("int", "5"),
        "name": ("str", '"x"'),
        "nothing": ("anything", "null"),
    }
    assert listed("--workload", "mine.py:Opaque")["thing"]["takes"] == "mine.Typed"
    assert listed("--workload", "mine.py:Bare") == {}
    assert "\n  steps (default 3)\n      how many; takes " in run("--workload", "mine.py:Typed").output


def test_a_registered_workload_is_asked_for_by_name(stage: Stage) -> None:
    result = stage.command(sys.executable, "-m", "pytest_aorta", "list", "options", "--workload", "gemm", "--json")
    assert json.loads(result.stdout.str())["options"][0]["default"] == "2"


def test_what_cannot_be_asked_is_one_line(stage: Stage) -> None:
    stage.write(leaves="print('text'); raise SystemExit(0)")
    for arguments, said in [
        (("--workload", "leaves.py"), "as in leaves.py:CLASS"),
        (("--workload", "gemn"), "did you mean 'gemm'?"),
        (("--workload", "leaves.py:Gone"), "cannot be imported: SystemExit: 0"),
        (("mitigations", "--workload", "gemm"), "the options of one workload, and no mitigations"),
    ]:
        result = run(*arguments)
        assert result.exit_code == 2
        assert said in result.output
        assert "Traceback" not in result.output
