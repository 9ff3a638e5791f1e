"""Collectors in trials: an example of the documentation, and collectors that raise, hang, or write too much."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from support.fake_distributions import write_distribution
from support.stage import Stage

from pytest_aorta.collectors.contract import Collector, CollectorError, CollectorSummary, load
from pytest_aorta.launch.host import collecting

ROOT = Path(__file__).parents[2]
START = ROOT / "pytest_aorta/collectors/in_process/start.py"

TRAIN = """
    import os, signal, torch

    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(4):
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        if os.environ["AORTA_TRIAL"] == "1" and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
"""

RAISES = """
    class InProcess:
        def __init__(self, options, folder, rank):
            self.folder = folder

        def start(self): ...

        def step(self, number):
            with open(f"{self.folder}/large", "w") as file:
                file.truncate(2**30)
            raise ValueError(f"in step {number}")

        def stop(self): ...
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("numerics:windw=3", "numerics has no option 'windw'; its options and defaults: threshold=inf, window=5, "),
        ("numerics:window=x", "numerics:window=x: expected a whole number, as in window=5"),
        ("numerics:save=x", "numerics:save=x: expected save=true or save=false"),
        ("numerics,numerics", "numerics is given twice"),
        ("nsys,rocprof", "nsys and rocprof exclude each other; use one of them at a time"),
        ("amd_log:level=9", "amd_log:level=9: expected 1 to 5"),
    ],
)
def test_options_are_read_as_their_defaults_are_and_what_cannot_be_used_is_refused(text: str, said: str) -> None:
    given = load(["numerics:threshold=1e4:save"])["numerics"].given
    assert given == {"threshold": 1e4, "window": 5, "norms": False, "save": True}
    with pytest.raises(CollectorError, match=re.escape(said)):
        load(text.split(","))


class Wide(Collector):
    """Names a file of its own, one of the host, and one that is not there."""

    def summarize(self, folder: Path, ranks: Sequence[int]) -> CollectorSummary:
        print("it may print")
        (folder / "own.txt").write_text("1")
        return CollectorSummary(
            "wide", {"x": math.inf}, (folder / "own.txt", Path("/etc/passwd"), folder / "missing.txt")
        )


class Raising(Collector):
    def summarize(self, folder: Path, ranks: Sequence[int]) -> CollectorSummary:
        raise ValueError(f"of ranks {ranks}")


class Endless(Collector):
    def summarize(self, folder: Path, ranks: Sequence[int]) -> CollectorSummary:
        (folder / "pid").write_text(str(os.getpid()))
        time.sleep(1e6)
        return CollectorSummary()


@pytest.mark.slow
def test_a_summary_changes_no_other_and_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_PATIENCE", 5.0)
    collectors = {"wide": Wide({}), "raising": Raising({}), "endless": Endless({})}
    collecting.make_folders(tmp_path / "trial_0", collectors)
    found = collecting.collected(tmp_path / "trial_0", collectors, ())
    assert (found["wide"].artifacts, found["wide"].problems) == (["trial_0/collect/wide/own.txt"], [])
    assert (found["wide"].sentence, found["wide"].data) == ("wide", {"x": math.inf})
    assert found["raising"].problems == ["its summary failed: ValueError: of ranks []"]
    assert found["endless"].problems == ["its summary failed: TimeoutError: it took longer than 5 s"]
    assert not psutil.pid_exists(int((tmp_path / "trial_0/collect/endless/pid").read_text()))


def test_a_collector_that_hangs_is_given_up_and_the_program_goes_on(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(
        """
import time
class InProcess:
    def __init__(self, options, folder, rank): ...
    def start(self): time.sleep(1e6)
"""
    )
    program = f"""
import json, runpy, sys, types
start = types.ModuleType('start'); start.__file__ = {str(START)!r}
exec(compile(open(start.__file__).read(), start.__file__, 'exec'), start.__dict__)
start.LIMIT = 0.2
asked = [dict(name='hangs', needs_torch=True, options=dict(), file={str(tmp_path / "hangs.py")!r})]
text = json.dumps(dict(folder={str(tmp_path)!r}, collectors=asked))
start.begin(text, lambda name, callback: callback(types.ModuleType(name)), 0, 0)
print('went on')
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "went on\n", done.stderr
    assert "TooLong: it was given up after" in (tmp_path / "hangs/rank_0.problem").read_text()


@pytest.mark.slow
def test_the_example_runs_beside_a_collector_that_raises_and_writes_too_much(stage: Stage) -> None:
    page = (ROOT / "docs/guides/collectors.md").read_text()
    for name, source in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", page, re.DOTALL):
        stage.write(**{name: source})
    stage.write(train=TRAIN, raises_in_rank=RAISES)
    stage.write(
        raises="""
            from pathlib import Path
            from pytest_aorta.collectors.contract import Collector

            class Raises(Collector):
                in_process = Path(__file__).with_name("raises_in_rank.py")
        """
    )
    named = {"slow_steps": "slow_steps:SlowSteps", "raises": "raises:Raises"}
    write_distribution(stage.path, "stage-collectors", {"aorta.collectors": named})

    arguments = ("--aorta-command", f"{sys.executable} train.py", "--aorta-trials", "2")
    done = stage.run(*arguments, "--aorta-collect", "slow_steps,raises")

    fine, killed = stage.trials().values()
    assert (fine["exit_status"], killed["failure"]["signal"]) == ("ok", "SIGKILL")
    assert re.fullmatch(r"slowest steps: rank_0 \d+\.\d{3} s", fine["collected"]["slow_steps"]["sentence"])
    assert killed["collected"]["slow_steps"]["sentence"] == ""
    problems = fine["collected"]["raises"]["problems"]
    assert problems[0].endswith("ValueError: in step 1")
    assert problems[-1] == f"large was removed: its {2**30} bytes are more than a trial may keep"
    assert killed["collected"]["raises"]["problems"][-1] == problems[-1]
    assert list(stage.path.rglob("large")) == []
    section = ["where it starts:", "  local-none", "    1 of 2: slow_steps: slowest steps: rank_0 *"]
    done.stdout.fnmatch_lines([*section, "    2 of 2: not collected: raises: rank_0: ValueError: in step 1"])
    assert collecting.LIMIT < 2**30


def test_findings_name_the_workload_where_there_are_several(stage: Stage) -> None:
    stage.write(
        pair="""
        class Workload:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self): return {"passed": True}

        class Left(Workload): pass
        class Right(Workload): pass
        """
    )
    done = stage.run_here("pair.py", "--aorta-trials", "1", "--aorta-collect", "memory")
    found = "    1 of 1: memory: nothing was measured: no step was seen"
    done.stdout.fnmatch_lines(["where it starts:", "  Left local-none", found, "  Right local-none", found])
