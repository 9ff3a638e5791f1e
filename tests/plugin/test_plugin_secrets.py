"""Secrets in pytest's environment come into no file, report or message, however trials go wrong."""

from __future__ import annotations

import re
import secrets

import pytest
from support.stage import PYTEST, Stage

#: A letter in front, so that none of them is a number that happens to be somewhere.
CANARIES = {
    name: f"canary{secrets.token_hex(8)}"
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "GITHUB_TOKEN", "MY_PASSWORD", "SLURM_JWT", "NCCL_API_KEY")
}
URLS = {
    "DATABASE_URL": f"postgres://me:canary{secrets.token_hex(8)}@db/x",
    "TORCH_STORE": f"redis://user:canary{secrets.token_hex(8)}@host",
}
#: Given to the trials by name, which is recorded.
GIVEN = f"given{secrets.token_hex(8)}"

#: Workloads that hold secrets while they go wrong, and never print them.
WORKLOADS = f"""
import ctypes
import os

class Passes:
    def __init__(self, config):
        # All of them have come through, so what is not found in a file has not just been lost on the way.
        self.secrets = {{name: os.environ[name] for name in {[*CANARIES, *URLS]}}}
    def setup(self): pass
    def run(self): return {{"passed": True, "metrics": {{"held": len(self.secrets)}}}}
    def go_wrong(self):
        token = os.environ["HF_TOKEN"]
        raise ValueError("x" if token else "")

class Fails(Passes):
    def run(self): return {{"passed": False, "failure_details": [{{"iteration": 1}}]}}

class Raises(Passes):
    run = Passes.go_wrong

class RaisesInSetup(Passes):
    setup = Passes.go_wrong

class RaisesInCleanup(Passes):
    cleanup = Passes.go_wrong

class Segfaults(Passes):
    def run(self):
        token = os.environ["HF_TOKEN"]
        ctypes.string_at(0)
        return token

class Hangs(Passes):
    timeout_sec = 1.0
    def run(self):
        token = os.environ["HF_TOKEN"]
        ctypes.PyDLL(None).sleep(1000)
        return token
"""

STATUSES = {
    "Passes": "ok",
    "Fails": "workload_failed",
    "Raises": "workload_failed",
    "RaisesInSetup": "infrastructure_failed",
    "RaisesInCleanup": "ok",
    "Segfaults": "workload_failed",
    "Hangs": "timeout",
}

RANKS = """
import os
from holds import Passes

class Ranks(Passes):
    launch_mode = "distributed"
    min_world_size = 2
    def setup(self): pass
    def run(self): return self.go_wrong() if os.environ["RANK"] == "1" else super().run()

class AbortsOnRank1(Ranks):
    def go_wrong(self): os.abort()
"""


@pytest.fixture
def holder(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage whose environment is full of secrets, with workloads that hold them."""
    for name, value in {**CANARIES, **URLS}.items():
        monkeypatch.setenv(name, value)
    stage.write(holds=WORKLOADS)
    return stage


def check(stage: Stage, *results: pytest.RunResult) -> None:
    """Nothing is anywhere: neither on the terminal nor in any file that the runs have left."""
    told = {f"output {number}": f"{result.stdout}{result.stderr}" for number, result in enumerate(results)}
    for path in stage.path.rglob("*"):
        if path.is_file():
            told[str(path.relative_to(stage.path))] = path.read_bytes().decode(errors="replace")
    assert [
        (name, word) for name, text in told.items() for word in re.findall("(?:canary|given)[0-9a-f]{8}", text)
    ] == []


@pytest.mark.parametrize(
    "way", [(), pytest.param(("-n", "2"), marks=[pytest.mark.slow, pytest.mark.long])], ids=["fork", "xdist"]
)
def test_however_a_trial_ends_it_takes_its_secrets_with_it(holder: Stage, way: tuple[str, ...]) -> None:
    result = holder.run(
        *("holds.py", "--aorta-extra-env", f"TOKEN={GIVEN}", *way),
        *("-vv", "-ra", "--showlocals", "--junitxml", "out.xml", "-o", "junit_logging=all"),
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert holder.statuses() == {f"{name}/trial_0.json": status for name, status in STATUSES.items()}
    trial = holder.trial("Passes/trial_0.json")
    assert trial["result"]["metrics"] == {"held": len(CANARIES) + len(URLS)}
    # By name, because it was given by name, and without its value.
    assert trial["env"]["env_vars"]["TOKEN"] == trial["request"]["overlay"]["TOKEN"] == "<redacted>"
    assert trial["env"]["env_vars"].get("TORCH_STORE") == "<redacted>"
    result.stdout.fnmatch_lines(["run it again: pytest *--aorta-extra-env TOKEN=... *"])
    assert "ValueError: x" in (holder.path / "out.xml").read_text()
    check(holder, result)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["elastic", pytest.param("torchrun", marks=pytest.mark.long)])
def test_nor_do_the_ranks_of_a_distributed_trial_leave_any(holder: Stage, launcher: str) -> None:
    holder.write(ranks=RANKS)
    result = holder.run(
        *("ranks.py", "--aorta-extra-env", f"TOKEN={GIVEN}", "--aorta-launcher", launcher),
        *("-vv", "--showlocals", "--junitxml", "out.xml"),
    )
    trials = holder.trials()
    assert list(trials) == ["AbortsOnRank1/trial_0.json", "Ranks/trial_0.json"]
    assert [trial["failure"]["rank"] for trial in trials.values()] == [1, 1]
    check(holder, result)


def test_in_pytest_s_own_process_only_what_showlocals_is_asked_for_shows_locals(holder: Stage) -> None:
    run = (
        *("holds.py", "-k", "Passes or Fails or Raises", "--aorta-isolation", "none"),
        *("--aorta-extra-env", f"TOKEN={GIVEN}", "-vv", "--junitxml", "out.xml"),
    )
    result = holder.run(*run)
    result.assert_outcomes(passed=2, failed=2, errors=2)
    check(holder, result)
    # It does so in the frames of the workload, as it does in those of a test, but not in ours.
    shown = holder.run(*run, "--showlocals").stdout.str()
    assert CANARIES["HF_TOKEN"] in shown
    assert GIVEN not in shown
    assert "overlay" not in shown


@pytest.mark.slow
def test_the_python_ways_to_a_trial_show_no_variables_when_they_are_called_wrongly(holder: Stage) -> None:
    holder.write(
        test_wrong="""
        import pytest
        from pytest_aorta import RunRequest, run_trials

        @pytest.fixture
        def bundles():
            with open("/proc/self/environ", "rb") as file:
                environ = dict(entry.split("=", 1) for entry in file.read().decode().split("\\0") if entry)
            return Hidden({"TOKEN": environ["HF_TOKEN"]}), Hidden({"RANK": environ["HF_TOKEN"]})

        class Hidden(dict):
            def __repr__(self):
                return "..."

        def test_fixture_unknown(aorta_run, bundles):
            aorta_run("no_such_thing", extra_env=bundles[0])

        def test_fixture_refused(aorta_run, bundles):
            aorta_run("gemm", extra_env=bundles[1])

        def test_option_unknown(aorta_run, bundles):
            aorta_run("gemm", extra_env=bundles[0], config={"sizez": 1})

        @pytest.mark.aorta
        def test_marked_unknown(aorta_run, bundles):
            aorta_run("no_such_thing", extra_env=bundles[0])

        def test_api_unknown(bundles):
            run_trials(RunRequest("no_such_thing", 1, extra_env=dict(bundles[0])))

        def test_api_refused(bundles):
            run_trials(RunRequest("gemm", 1, extra_env=dict(bundles[1])))
        """
    )
    result = holder.command(*PYTEST, "test_wrong.py", "-vv", "--showlocals", "--junitxml", "out.xml")
    result.assert_outcomes(failed=6)
    result.stdout.fnmatch_lines_random(["*unknown workload 'no_such_thing'*", "*RANK is set by the launcher*"])
    check(holder, result)


@pytest.mark.parametrize("value", ["['a', TOKEN]", "{'TOKEN': 5, 'OTHER': TOKEN}", "{'RANK': TOKEN}"])
def test_a_fixture_that_gives_no_variables_is_told_without_them(holder: Stage, value: str) -> None:
    holder.write(
        conftest=f"""
        import os
        import pytest
        TOKEN = os.environ["HF_TOKEN"]
        @pytest.fixture
        def aorta_extra_env(): return {value}
        """
    )
    result = holder.run_here("holds.py::Passes", "-vv")
    result.assert_outcomes(errors=1)
    check(holder, result)
