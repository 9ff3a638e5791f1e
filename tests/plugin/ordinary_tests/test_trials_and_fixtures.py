"""Trials take part in fixtures like any test: conftest.py files run around them, and can change what they see."""

from __future__ import annotations

import pytest
from support.stage import Stage

#: Tells the variables that it sees, and writes down when it runs.
SEER = """
import os

class Seer:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        self.tell("trial")
        return {"passed": True, "metrics": {k: v for k, v in os.environ.items() if k.startswith("SEEN_")}}
    def cleanup(self): self.tell("cleanup")
    def tell(self, word):
        with open(os.environ["STORY"], "a") as story:
            story.write(word + "\\n")
"""

#: An autouse fixture that tells of itself.
TELLER = """
import pytest

@pytest.fixture(autouse=True)
def {name}(request):
    with open({story!r}, "a") as story:
        story.write("{name} before " + request.node.name + "\\n")
    yield
    with open({story!r}, "a") as story:
        story.write("{name} after " + request.node.name + "\\n")
"""

SEEN = ("--aorta-workload", "seer")


@pytest.fixture
def seer(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage.write(seer=SEER)
    stage.register(seer="seer:Seer")
    monkeypatch.setenv("STORY", str(stage.path / "story"))
    return stage


def story(stage: Stage) -> list[str]:
    """What was told since the last look."""
    told = (stage.path / "story").read_text().splitlines()
    (stage.path / "story").unlink()
    return told


def metrics(stage: Stage, index: int) -> dict[str, str]:
    return dict(stage.trial(f"seer/trial_{index}.json")["result"]["metrics"])


def test_autouse_fixtures_of_root_and_current_directory_run_around_a_trial(
    seer: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = seer.path / "below"
    seer.write_file("pytest.ini", "[pytest]")
    for name, folder in (("outer", seer.path), ("inner", below)):
        folder.mkdir(exist_ok=True)
        (folder / "conftest.py").write_text(TELLER.format(name=name, story=str(seer.path / "story")))
    seer.write_file("below/test_one.py", "def test_one(): pass")
    before, after = [f"{name} before seer[local-none-0]" for name in ("outer", "inner")], "after seer[local-none-0]"
    around = [*before, "trial", "cleanup", f"inner {after}", f"outer {after}"]
    monkeypatch.syspath_prepend(seer.path)
    monkeypatch.setenv("PYTHONPATH", str(seer.path))
    monkeypatch.chdir(below)
    seer.run_here(*SEEN).assert_outcomes(passed=1)
    assert story(seer) == around
    # The same when tests are collected as well, whichever directory is named.
    monkeypatch.chdir(seer.path)
    seer.run_here(*SEEN, "below").assert_outcomes(passed=2)
    one = [f"{name} test_one" for name in ("outer before", "inner before", "inner after", "outer after")]
    assert story(seer) == [*one, *(line for line in around if not line.startswith("inner"))]
    monkeypatch.chdir(below)
    seer.run_here(*SEEN, ".").assert_outcomes(passed=2)
    assert story(seer) == [*one, *around]


def test_override_of_the_extra_variables_reaches_the_trial(seer: Stage) -> None:
    seer.write(
        conftest="""
        import pytest

        @pytest.fixture
        def aorta_extra_env(aorta_extra_env, tmp_path, request):
            return {**aorta_extra_env, "SEEN_ITEM": request.node.name, "SEEN_A": "conftest", "SEEN_TMP": str(tmp_path)}
        """
    )
    result = seer.run_here(*SEEN, "--aorta-trials", "2", "--aorta-extra-env", "SEEN_A=option,SEEN_B=option, with comma")
    result.assert_outcomes(passed=2)
    for index in range(2):
        seen = metrics(seer, index)
        # What the overlay says is recorded, as the trial's own process saw it.
        assert seer.trial(f"seer/trial_{index}.json")["env"]["env_vars"].items() >= seen.items()
        assert seen.pop("SEEN_TMP")
        item = f"seer[local-none-{index}]"
        assert seen == {"SEEN_ITEM": item, "SEEN_A": "conftest", "SEEN_B": "option, with comma"}


@pytest.mark.parametrize("isolation", ["fork", "none"])
def test_variables_that_a_fixture_sets_reach_the_trial(
    seer: Stage, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    seer.write(
        conftest="""
        import os
        import pytest

        @pytest.fixture(autouse=True)
        def variables(monkeypatch, request):
            monkeypatch.setenv("SEEN_BY_FIXTURE", request.node.name)
            monkeypatch.delenv("SEEN_OUTSIDE")

        def pytest_unconfigure():
            assert os.environ["SEEN_OUTSIDE"] == "1"
            assert "SEEN_BY_FIXTURE" not in os.environ
        """
    )
    monkeypatch.setenv("SEEN_OUTSIDE", "1")
    result = seer.run_here(*SEEN, "--aorta-trials", "2", "--aorta-isolation", isolation)
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    assert [metrics(seer, index) for index in (0, 1)] == [
        {"SEEN_BY_FIXTURE": f"seer[local-none-{index}]"} for index in (0, 1)
    ]


def test_a_fixture_that_fails_skips_or_cannot_be_torn_down(seer: Stage) -> None:
    seer.write(
        conftest="""
        import pytest

        @pytest.fixture(autouse=True)
        def licence(request):
            if request.node.name.endswith("-1]"):
                raise RuntimeError("no licence left")
            if request.node.name.endswith("-2]"):
                pytest.skip("no device")
            yield
            if request.node.name.endswith("-3]"):
                raise RuntimeError("cannot be released")
        """
    )
    result = seer.run_here(*SEEN, "--aorta-trials", "4", "-rsE")
    result.assert_outcomes(passed=2, errors=2, skipped=1)
    result.stdout.fnmatch_lines(["*RuntimeError: no licence left*", "*ERROR at teardown of seer?local-none-3?*"])
    result.stdout.fnmatch_lines(["SKIPPED *no device", "ERROR aorta::seer?local-none-1?*"])
    assert list(seer.statuses().items()) == [
        *(("seer/trial_0.json", "ok"), ("seer/trial_1.json", "infrastructure_failed"), ("seer/trial_3.json", "ok")),
    ]
    failure = seer.trial("seer/trial_1.json")["failure"]
    assert (failure["phase"], failure["kind"], failure["type"]) == ("launch", "exception", "RuntimeError")
    assert failure["message"] == "a fixture failed: no licence left"
    assert story(seer).count("trial") == 2
