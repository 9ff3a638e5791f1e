"""Each trial has a place of its own: ``AORTA_TRIAL_INDEX``, ``AORTA_TRIAL_DIR``, and a private TMPDIR."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage

#: Looks for a checkpoint of another trial in all places where one may be, and leaves its own; the import asks for
#: the folder of temporary files already. A trial that is named in ``fail`` fails.
PLACES = """
import os
import tempfile
from pathlib import Path

tempfile.gettempdir()

class Places:
    def __init__(self, config):
        self.config = config
        self.index = int(os.environ["AORTA_TRIAL_INDEX"])
    def setup(self):
        self.folders = [Path(tempfile.gettempdir()), Path(os.environ["TMPDIR"]), Path(os.environ["AORTA_TRIAL_DIR"])]
        self.found = sorted({path.name for folder in self.folders for path in folder.iterdir()})
    def run(self):
        for folder in self.folders:
            (folder / f"checkpoint_{self.index}").write_text("weights")
        names = ("index", "found")
        metrics = {name: getattr(self, name) for name in names}
        metrics["folders"] = list(map(str, self.folders))
        return {"passed": self.index != self.config.get("fail"), "metrics": metrics}
"""


@pytest.fixture
def places(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage with a TMPDIR of its own, so that nothing else is in there."""
    tmp = stage.path / "t"
    tmp.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp))
    monkeypatch.setattr(tempfile, "tempdir", None)
    stage.write(places=PLACES)
    return stage


def metrics(stage: Stage) -> list[dict[str, Any]]:
    return [trial["result"]["metrics"] for trial in stage.trials().values()]


def left(stage: Stage) -> list[str]:
    """What runs have left in the TMPDIR of the stage."""
    return sorted(path.name for path in (stage.path / "t").rglob("*") if path.is_file() and path.name[0] != ".")


@pytest.mark.parametrize(
    "isolation", ["fork", pytest.param("spawn", marks=[pytest.mark.slow, pytest.mark.long]), "none"]
)
def test_no_trial_finds_the_checkpoint_of_another(places: Stage, isolation: str) -> None:
    options = ("--aorta-trials", "3", "--aorta-isolation", isolation)
    places.run_here("places.py", *options).assert_outcomes(passed=3)
    trials = places.trials()
    assert [trial["result"]["metrics"]["index"] for trial in trials.values()] == [0, 1, 2]
    assert [trial["result"]["metrics"]["found"] for trial in trials.values()] == [[], [], []]
    for path, trial in trials.items():
        tmp, variable, files = trial["result"]["metrics"]["folders"]
        assert tmp == variable
        assert files == str((places.results / path).parent / trial["artifacts"]["files"])
        assert Path(files, f"checkpoint_{trial['trial_index']}").read_text() == "weights"
        assert not Path(tmp).exists()
        variables = trial["env"]["env_vars"]
        assert (variables["AORTA_TRIAL_INDEX"], variables["TMPDIR"]) == (str(trial["trial_index"]), tmp)
        assert trial["mitigations_applied"] == ["none"]
    assert left(places) == []


def test_a_failed_trial_keeps_its_temporary_files_and_says_where(places: Stage) -> None:
    done = places.run_here("places.py", "--aorta-trials", "2", "--aorta-config", "fail=1")
    done.assert_outcomes(passed=1, failed=1)
    passed, failed = places.trials().values()
    assert "tmp" not in passed["artifacts"]
    kept = failed["artifacts"]["tmp"]
    assert kept == failed["result"]["metrics"]["folders"][0]
    assert os.listdir(kept) == ["checkpoint_1"]
    done.stdout.fnmatch_lines([f"its temporary files (kept for 3 days): {kept}"])


def test_the_files_of_a_trial_on_another_host_travel_home(places: Stage) -> None:
    places.run("places.py", "--aorta-trials", "2", "--aorta-host", "popen").assert_outcomes(passed=2)
    for path, trial in places.trials().items():
        folder = (places.results / path).parent / trial["artifacts"]["files"]
        assert [file.read_text() for file in folder.iterdir()] == ["weights"]
    assert left(places) == []
