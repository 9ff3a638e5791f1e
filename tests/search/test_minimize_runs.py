"""``pytest-aorta minimize``: the smallest part of a mitigation set's variables that still fixes."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter

import pytest
from support.stage import Stage, text

WORKLOAD = """
import os

class Flaky:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        return {"passed": "V2" in os.environ}
"""

MINIMIZE = ("minimize", "four", "--aorta-workload", "flaky", "--aorta-registry-file", "registry.json")


def minimize(stage: Stage, *more: str) -> pytest.RunResult:
    return stage.aorta(*MINIMIZE, *more)


@pytest.fixture
def flaky(stage: Stage) -> Stage:
    stage.write(flaky=WORKLOAD)
    stage.register(flaky="flaky:Flaky")
    four = {f"V{number}": "1" for number in range(4)}
    stage.write_registry(mitigations={"four": four, "wrong": {"W": "1"}})
    return stage


@pytest.mark.slow
def test_what_is_needed_is_found_and_every_trial_has_its_file(flaky: Stage) -> None:
    done = minimize(flaky)
    assert done.ret == 0
    done.stdout.fnmatch_lines(
        [
            "*= search =*",
            "flaky: of 4 variables of four, V2 is needed",
            "variables * failed * baseline * p * level",
            "four * 0 of 6 * 6 of 6 * acts",
            "V2 V3 * acts",
            "V2 * acts",
            "with V2: failure rate below *% (95 %), p = *",
            "at most 5%: the probability that any answer on a part is wrong",
        ]
    )
    cells = Counter(path.split("/")[1] for path in flaky.files())
    assert {"local-none", "local-four", "local-four.V2+four.V3", "local-four.V2"} <= set(cells)
    alone = flaky.trial("flaky/local-four.V2/trial_0.json")
    assert alone["mitigations_applied"] == ["four.V2"]
    assert {name for name in alone["env"]["env_vars"] if name.startswith("V") and name[1:].isdigit()} == {"V2"}
    ids = [trial["trial_id"] for trial in flaky.trials().values()]
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
def test_what_was_tried_before_a_kill_is_there_and_need_not_be_run_again(flaky: Stage) -> None:
    process = flaky.start_command(sys.executable, "-m", "pytest_aorta", *MINIMIZE)
    flaky.wait_until(lambda: len(flaky.files()) >= 4)
    os.kill(process.pid, signal.SIGKILL)
    flaky.finish(process)
    flaky.wait_until_alone()
    before = flaky.trials()
    done = minimize(flaky, "--aorta-resume")
    done.stdout.fnmatch_lines(
        ["* had a result already (--aorta-resume)", "flaky: of 4 variables of four, V2 is needed"]
    )
    after = flaky.trials()
    assert all(after[path] == trial for path, trial in before.items())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--aorta-mitigations", "four"), "--aorta-mitigations four: with pytest-aorta minimize, expected one other *"),
        (("--aorta-stop", "1h"), "pytest-aorta minimize and --aorta-stop: use one of them*"),
        (("--aorta-mitigations", "wrong"), "*the baseline wrong sets W, which it does not set; expected a baseline *"),
        (("--aorta-extra-env", "V0=1,V1=1,V2=1,V3=1"), "*it has no variable with another value than in the baseline"),
    ],
)
def test_a_search_that_cannot_be_is_refused(flaky: Stage, more: tuple[str, ...], message: str) -> None:
    done = minimize(flaky, *more)
    assert done.ret != 0
    pytest.LineMatcher(text(done).splitlines()).fnmatch_lines([f"*{message}"])
    assert not flaky.results.exists() or not flaky.files()


def test_words_after_dashes_are_a_command_and_a_missing_argument_is_named(stage: Stage) -> None:
    done = stage.aorta("minimize", "A=1,B=1", "--", "python", "nowhere.py")
    assert done.ret == 4
    assert "--aorta-command 'python nowhere.py': there is no file 'nowhere.py'" in text(done)
    for search, argument in (("minimize", "A,B"), ("explain", "GOOD")):
        assert f"Missing argument '{argument}'" in text(stage.aorta(search))
