"""``--aorta-replay``: what it collects, where its results lie, what it says and what it does not take."""

from __future__ import annotations

import json

import pytest
from support.stage import Stage, counts, text

SEES = """
import os
import random

class Sees:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self): return {"passed": True, "metrics": {"drawn": random.random(), "seen": os.environ.get("API_TOKEN")}}
"""

FILE = "results/Sees/trial_0.json"


@pytest.fixture
def sees(stage: Stage) -> Stage:
    stage.write(sees=SEES)
    return stage


@pytest.mark.slow
def test_the_record_stays_and_the_replay_lies_beside_it(sees: Stage) -> None:
    given = ["--aorta-isolation", "spawn", "--aorta-timeout", "50", "--aorta-memory", "8G", "--aorta-config", "size=5"]
    given += ["--aorta-devices", "none", "--aorta-slots", "2", "--aorta-elastic", "max_restarts=1"]
    sees.run_here("sees.py", *given, "--aorta-extra-env", "A=1", "--aorta-mitigations", "omp_1", "--aorta-seed", "7")
    before = (sees.path / FILE).read_bytes()

    for _ in range(2):
        result = sees.run_here("--aorta-replay", FILE)

        result.stdout.fnmatch_lines(
            [
                "aorta: 1 replay, results in results",
                "replay of results/Sees/trial_0.json (*): ok, as it was",
                "  the same request, seeds and surroundings, as far as the records say",
            ]
        )
    assert (sees.path / FILE).read_bytes() == before
    assert sees.files() == ["Sees/trial_0.json", "replay/Sees/local-omp_1/trial_0.json"]
    assert sees.earlier() == ["replay/Sees/local-omp_1/trial_0.json"]
    then, now = sees.trials().values()
    assert {**now["request"], "order": ""} == {**then["request"], "order": ""}  # it is the only one of its run
    for key in ("request_fingerprint", "mitigations_applied", "config", "seeds", "trial_id"):
        assert now[key] == then[key]
    assert now["request"]["limits"]["memory"] == 8 * 2**30


def test_what_differs_now_is_said_and_recorded(sees: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    sees.run_here("sees.py")
    changed = sees.trial("Sees/trial_0.json")
    changed["host"] = "node7"
    changed["env"]["torch"]["version"] = "2.0.0"
    (sees.path / "old.json").write_text(json.dumps(changed))
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    with (sees.path / "sees.py").open("a") as file:
        file.write("# changed\n")

    result = sees.run_here("--aorta-replay", "old.json")

    again = sees.trial("replay/Sees/local-none/trial_0.json")["replay_of"]
    differences = again["differences"]
    assert differences[0].startswith("host node7 -> ")
    assert {"NCCL_DEBUG unset -> INFO", "the fingerprint of the request"} <= set(differences)
    assert [line for line in differences if line.startswith("torch 2.0.0 -> ")]
    result.stdout.fnmatch_lines(["  differs now: NCCL_DEBUG unset -> INFO"])
    assert again["file"] == str(sees.path / "old.json")
    assert again["request_fingerprint"] == changed["request_fingerprint"]


def test_a_secret_is_asked_for_and_given_again(sees: Stage) -> None:
    sees.run_here("sees.py", "--aorta-extra-env", "API_TOKEN=canary")

    refused = sees.run_here("--aorta-replay", FILE)
    other = sees.run_here("--aorta-replay", FILE, "--aorta-extra-env", "API_TOKEN=canary,OTHER=1")
    given = sees.run_here("--aorta-replay", FILE, "--aorta-extra-env", "API_TOKEN=canary")

    assert refused.ret == other.ret == pytest.ExitCode.USAGE_ERROR
    assert "trial_0.json: the value of API_TOKEN is a secret, which is not recorded; give it with " in text(refused)
    assert "--aorta-extra-env OTHER=...: a replay has the variables of its record" in text(other)
    assert counts(given) == {"passed": 1}
    then, now = sees.trials().values()
    assert now["result"]["metrics"]["seen"] == "canary"
    assert now["request_fingerprint"] == then["request_fingerprint"]


def test_a_failed_trial_shows_how_to_replay_it(faulty: Stage) -> None:
    first = faulty.run_here("--aorta-workload", "raises")

    (line,) = [line for line in first.outlines if line.startswith("with the same seeds: pytest ")]
    again = faulty.run_here(*line.split()[5:])
    assert counts(again) == {"failed": 1}
    again.stdout.fnmatch_lines(["replay of results/raises/trial_0.json (*): workload_failed, as it was"])
