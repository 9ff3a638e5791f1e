"""A trial that is run again from its file alone is the same request, with the same seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage, counts, make_venv

pytestmark = pytest.mark.usefixtures("as_users_have_it")

WORKLOADS = """
import os
import random
import time

class Draws:
    name = "draws"
    default_config = {"size": 3, "steps": 1}
    def __init__(self, config): self.config = config
    def setup(self): pass
    def run(self):
        drawn = [random.random() for _ in range(self.config["size"])]
        return {"passed": min(drawn) > 0.3, "metrics": {"drawn": drawn, "seen": os.environ.get("SEEN"), **self.config}}

class Hangs(Draws):
    name = "hangs"
    def run(self): time.sleep(1000)
"""

TESTS = """
import pytest
from draws import Draws

@pytest.mark.aorta(trials=1, mitigations=["none", "seen"])
def test_marked(aorta_run):
    aorta_run(Draws, config={"size": 2})

def test_run(aorta_run):
    aorta_run(Draws, config={"size": 4}, extra_env={"SEEN": "by hand"}, index=3)
"""

RANKS = """
import os
import random

class Ranks:
    name = "ranks"
    launch_mode = "distributed"
    min_world_size = 2
    def __init__(self, config): pass
    def setup(self): pass
    def run(self): return {"passed": os.environ["RANK"] == "0", "metrics": {"drawn": random.random()}}
"""

SCRIPT = """
import sys
sys.exit(int(sys.argv[1]))
"""

SCRIPT_TEST = """
def test_script(aorta_torchrun):
    assert aorta_torchrun("train.py", 3, env={"SEEN": "script"}).returncode != 0
"""


@pytest.fixture
def draws(stage: Stage) -> Stage:
    stage.write(draws=WORKLOADS)
    (stage.path / "test_draws.py").write_text(TESTS)
    stage.write_registry(
        mitigations={"seen": {"SEEN": "mitigation", "OMP_NUM_THREADS": "1"}},
        environments={"prefix": {"launcher": "nice -n 1"}, "gone": {"venv": "gone"}, "venv": {"venv": "venv"}},
    )
    return stage


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    found = Stage(tmp_path_factory.mktemp("elsewhere"))
    found.isolation = None  # which a record says
    return found


REGISTRY = ("--aorta-registry-file", "registry.json")


def replayed(stage: Stage, elsewhere: Stage, *options: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Replay all records; each with that of its replay, by the path of its file."""
    result = elsewhere.run("--aorta-replay", str(stage.results), *options)
    elsewhere.wait_until_alone()
    assert sum(counts(result).values()) == len(stage.files()), counts(result)
    pairs = {}
    for again in elsewhere.trials().values():
        path = Path(again["replay_of"]["file"]).relative_to(stage.results).as_posix()
        pairs[path] = (stage.trial(path), again)
    assert sorted(pairs) == stage.files()
    return pairs


def check_same(then: dict[str, Any], now: dict[str, Any]) -> None:
    seeded = then["request"]["seed"] is not None or "python" not in then["env"] or not then["env"]["python"]
    assert now["replay_of"]["differences"] == ([] if seeded else ["seeds: there are none in the record"])
    assert {**now["request"], "order": ""} == {**then["request"], "order": ""}  # a replay is the only one of its run
    assert now["request_fingerprint"] == then["request_fingerprint"]
    assert now["seeds"] == then["seeds"]
    assert [rank["seeds"] for rank in now["ranks"]] == [rank["seeds"] for rank in then["ranks"]]
    assert now["result"]["metrics"] == then["result"]["metrics"]
    assert (now["trial_id"], now["cell"]) == (then["trial_id"], then["cell"])
    assert (now["exit_status"], now["config"]) == (then["exit_status"], then["config"])


WAYS = {
    "fork": ("draws.py", "-k", "not hangs", "--aorta-environment", "venv", "--aorta-mitigations", "seen"),
    "prefix": ("draws.py", "-k", "not hangs", "--aorta-environment", "prefix", "--aorta-config", "size=5"),
    "tests": ("test_draws.py",),
    "hang": ("draws.py", "-k", "hangs", "--aorta-timeout", "2"),
    "launch": ("draws.py", "-k", "not hangs", "--aorta-environment", "gone"),
    "spawn": ("draws.py", "-k", "not hangs", "--aorta-isolation", "spawn", "--aorta-steps", "7"),
    "none": ("draws.py", "-k", "not hangs", "--aorta-isolation", "none", "--aorta-seed", "7"),
    "slots": ("draws.py", "-k", "not hangs", "--aorta-slots", "2", "--aorta-trials", "2"),
    "ranks": ("ranks.py",),
    "torchrun": ("ranks.py", "--aorta-launcher", "torchrun", "--aorta-nproc", "3"),
    "script": ("test_script.py",),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "ways", [pytest.param([*WAYS][:8], id="alone"), pytest.param([*WAYS][8:], marks=pytest.mark.long, id="ranks")]
)
def test_records_of_every_way_to_run_a_trial_are_replayed(draws: Stage, elsewhere: Stage, ways: list[str]) -> None:
    make_venv(draws.path / "venv", with_ours=True)
    draws.write(ranks=RANKS, train=SCRIPT)
    (draws.path / "test_script.py").write_text(SCRIPT_TEST)
    for way in ways:
        draws.run(*WAYS[way], *REGISTRY, "--aorta-results-dir", f"results/{way}")
    pairs = replayed(draws, elsewhere)
    for then, now in pairs.values():
        check_same(then, now)
    assert {path.partition("/")[0] for path in pairs} == set(ways)
    unseeded = {path.partition("/")[0] for path, (then, _) in pairs.items() if then["request"]["seed"] is None}
    assert unseeded == {"launch", "script"} & set(ways)
    for path, (then, _) in pairs.items():
        if path.startswith("torchrun/"):
            assert len({json.dumps(rank["seeds"]) for rank in then["ranks"]}) == 3
