"""A variable set by one trial is never seen by another."""

from __future__ import annotations

import pytest
from support.stage import Stage


def test_variables_of_one_cell_are_not_seen_in_another(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEN_OUTER", "outer")
    stage.write(
        looker="""
        import os

        AT_IMPORT = {k: v for k, v in os.environ.items() if k.startswith("SEEN_")}

        class Looker:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self):
                now = {k: v for k, v in os.environ.items() if k.startswith("SEEN_")}
                return {"passed": now == AT_IMPORT, "metrics": now}
        """
    )
    stage.write_registry(
        mitigations={
            "one": {"SEEN_A": "1", "SEEN_B": "1"},
            "two": {"SEEN_B": "2", "SEEN_C": "2"},
            "over": {"SEEN_OUTER": ""},
        },
        environments={"base": {"env": {"SEEN_A": "base", "SEEN_ENV": "base"}}},
    )
    sets = ("none", "one", "one,two", "two,one", "over")
    result = stage.run(
        *("looker.py", "--aorta-trials", "2", "--aorta-registry-file", "registry.json"),
        *(word for names in sets for word in ("--aorta-mitigations", names)),
        *("--aorta-environment", "local", "--aorta-environment", "base"),
    )
    result.assert_outcomes(passed=2 * 5 * 2)
    base = {"SEEN_A": "base", "SEEN_ENV": "base"}
    sets_see: dict[str, dict[str, str]] = {
        "none": {},
        "one": {"SEEN_A": "1", "SEEN_B": "1"},
        "one+two": {"SEEN_A": "1", "SEEN_B": "2", "SEEN_C": "2"},  # later wins
        "two+one": {"SEEN_A": "1", "SEEN_B": "1", "SEEN_C": "2"},
        "over": {"SEEN_OUTER": ""},
    }
    for path, trial in stage.trials().items():
        environment, _, names = path.split("/")[1].partition("-")
        expected = {"SEEN_OUTER": "outer", **(base if environment == "base" else {}), **sets_see[names]}
        assert trial["result"]["metrics"] == expected, path
        # Recorded is what any cell sets, so that each says what it had of that.
        assert {k: v for k, v in trial["env"]["env_vars"].items() if k.startswith("SEEN_")} == expected, path
