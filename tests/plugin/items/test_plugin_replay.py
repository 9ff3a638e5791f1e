"""``--aorta-replay``: what it collects, where its results lie, what it says and what it does not take."""

from __future__ import annotations

import json
import re

import pytest
from support.stage import Stage, counts, text

from pytest_aorta.plugin.options import read_selection
from pytest_aorta.plugin.run import replay_selection
from pytest_aorta.settings import OptionError

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


def test_the_record_stays_and_the_replay_lies_beside_it(sees: Stage) -> None:
    sees.run_here("sees.py")
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
    assert sees.files() == ["Sees/trial_0.json", "replay/Sees/local-none/trial_0.json"]
    assert sees.earlier() == ["replay/Sees/local-none/trial_0.json"]


def test_replays_are_items_as_all_others(sees: Stage) -> None:
    sees.run_here("sees.py", "--aorta-trials", "2")

    listed = sees.run_here("--aorta-replay", "results", "--collect-only", "-q")
    named = sees.run_here("--aorta-replay", "results", "replay::Sees[local-none-1]")

    assert listed.outlines[:2] == ["replay::Sees[local-none-0]", "replay::Sees[local-none-1]"]
    assert counts(named) == {"passed": 1}
    assert "replay/Sees/local-none/trial_1.json" in sees.files()
    assert "replay/Sees/local-none/trial_0.json" not in sees.files()


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


def test_what_another_cell_sets_is_recorded_in_every_cell(sees: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_FLAG", "ambient")
    monkeypatch.setenv("MY_TOKEN", "canary1234")
    sees.write_registry(mitigations={"flag": {"MY_FLAG": "set", "MY_TOKEN": "x", "MY_OTHER": "y"}})
    sees.write(
        test_marked="""
        import pytest
        from sees import Sees

        @pytest.mark.aorta(mitigations=["none", "flag"])
        def test_it(aorta_trial):
            aorta_trial(Sees)
        """
    )

    sees.run_here(
        *("sees.py", "test_marked.py", "--aorta-registry-file", "registry.json"),
        *("--aorta-mitigations", "none", "--aorta-mitigations", "flag"),
    )

    trials = [trial for trial in sees.trials().values() if trial["cell"] == "local-none"]
    assert len(trials) == 2
    for trial in trials:
        assert trial["request"]["ambient"] == {"MY_FLAG": "ambient", "MY_OTHER": None, "MY_TOKEN": "<redacted>"}
        assert trial["env"]["env_vars"]["MY_FLAG"] == "ambient"
    assert "canary1234" not in "".join(path.read_text() for path in sees.results.rglob("*.json"))


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


def test_a_failed_trial_shows_how_to_replay_it(stage: Stage) -> None:
    stage.write(
        fails="""
        class Fails:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self): return {"passed": False}
        """
    )

    first = stage.run_here("fails.py")

    (line,) = [line for line in first.outlines if line.startswith("with the same seeds: pytest ")]
    again = stage.run_here(*line.split()[5:])
    assert counts(again) == {"failed": 1}
    again.stdout.fnmatch_lines(["replay of results/Fails/trial_0.json (*): workload_failed, as it was"])


def test_what_is_no_record_is_one_message_and_nothing_runs(stage: Stage) -> None:
    stage.write_file("list.json", "[1]")

    result = stage.run_here("--aorta-replay", "list.json", "--aorta-replay", "gone.json")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(r"ERROR: --aorta-replay: \S+/list.json: no record of a trial, which has a schema", text(result))
    assert re.search(r"\n\S+/gone.json: No such file or directory", text(result))
    assert "Traceback" not in text(result)
    assert not stage.results.exists()


@pytest.mark.parametrize("option", ["--aorta-trials", "--aorta-workload", "--aorta-seed", "--aorta-slots"])
def test_options_that_contradict_the_record_are_refused(pytester: pytest.Pytester, option: str) -> None:
    config = pytester.parseconfig("--aorta-replay", "trial_0.json", option, "1")

    with pytest.raises(OptionError, match=f"{option}: with --aorta-replay, the record says what is run; valid beside"):
        replay_selection(config, read_selection(config, {}))
