"""What the table says of faults that were planted."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from support.stage import Stage, text

pytestmark = pytest.mark.usefixtures("as_users_have_it")


def test_the_table_says_what_was_planted(stage: Stage) -> None:
    stage.copy(Path(__file__).with_name("planted_workload.py"))
    stage.write_registry(mitigations={name: {"PLANTED": name} for name in ("slow", "import", "bugs")})
    sets = [word for name in ("none", "slow", "import", "bugs") for word in ("--aorta-mitigations", name)]
    options = ("--aorta-trials", "20", "--aorta-registry-file", "registry.json")
    shown = text(stage.run("planted_workload.py", *options, *sets))
    matrix = json.loads((stage.results / "matrix.json").read_text())
    jsonschema.validate(matrix, json.loads((files("pytest_aorta") / "schemas" / "matrix.schema.json").read_text()))
    cells = {cell["mitigations"][0]: cell for cell in matrix["cells"]}

    slow = cells["slow"]
    assert slow["verdict"]["kind"] == "fixes"
    assert slow["speed"]["text"].startswith("slower: +30")
    assert slow["speed"]["interval"]["low"] > 1.15
    assert slow["speed"]["change"] in shown

    # What crashes at import did not run, and has no speed.
    crashed = cells["import"]
    assert crashed["verdict"]["kind"] == "did not run"
    assert (crashed["counted"], crashed["failure_rate"]) == (0, None)
    assert crashed["step_times"] is crashed["speed"] is crashed["comparison"] is None
    assert "did not run" in shown

    # Two bugs have two signatures, and messages with other numbers one.
    assert len(cells["none"]["signatures"]) == 1
    nan, crash = cells["bugs"]["signatures"]
    assert (nan["signature"]["type"], len(nan["trials"])) == ("FloatingPointError", 10)
    assert "planted_workload.py" in nan["signature"]["where"]
    assert (crash["signature"]["type"], crash["trials"]) == ("SIGSEGV", [0, 3, 6, 9, 12, 15, 18])
    verdicts = {each["signature"]["type"]: each for each in cells["bugs"]["by_signature"]}
    assert (verdicts["SIGSEGV"]["failures"], verdicts["SIGSEGV"]["base_failures"]) == (7, 0)
    assert verdicts["SIGSEGV"]["verdict"]["kind"] == "worse"
    assert "SIGSEGV" in shown
    assert "over the run" not in shown
