"""Secrets in pytest's environment come into no file, report or message, however trials go wrong."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage

HERE = Path(__file__).parent

#: A letter in front, so that none of them is a number that happens to be somewhere.
CANARIES = {
    name: f"canary{secrets.token_hex(8)}"
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "GITHUB_TOKEN", "MY_PASSWORD", "SLURM_JWT")
}
URL = f"postgres://me:canary{secrets.token_hex(8)}@db/x"

#: Given to the trials by name, which is recorded.
GIVEN = f"given{secrets.token_hex(8)}"

STATUSES = {
    "Passes": "ok",
    "Fails": "workload_failed",
    "Raises": "workload_failed",
    "RaisesInSetup": "infrastructure_failed",
    "RaisesInCleanup": "ok",
    "Segfaults": "workload_failed",
    "Hangs": "timeout",
}


@pytest.fixture
def holder(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage whose environment is full of secrets, with workloads that hold them."""
    for name, value in {**CANARIES, "DATABASE_URL": URL}.items():
        monkeypatch.setenv(name, value)
    stage.copy(HERE / "spilling_workloads.py")
    return stage


def check(stage: Stage, result: pytest.RunResult) -> None:
    """Nothing is anywhere: neither on the terminal nor in any file that the run has left."""
    told = {"stdout": result.stdout.str(), "stderr": result.stderr.str()}
    for path in stage.path.rglob("*"):
        if path.is_file():
            told[str(path.relative_to(stage.path))] = path.read_bytes().decode(errors="replace")
    spilled = [(name, word) for name, text in told.items() for word in re.findall("(?:canary|given)[0-9a-f]{8}", text)]
    assert spilled == []


WAYS = {
    "fork": (),
    "spawn": ("--aorta-isolation", "spawn"),
    "slots": ("--aorta-slots", "2"),
    "xdist": ("-n", "2"),
}


@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.slow if way != "fork" else ()) for way in WAYS])
def test_however_a_trial_ends_it_takes_its_secrets_with_it(holder: Stage, way: str) -> None:
    result = holder.run(
        *("spilling_workloads.py", "--aorta-extra-env", f"TOKEN={GIVEN}", *WAYS[way]),
        *("-vv", "-ra", "--showlocals", "--junitxml", "out.xml", "-o", "junit_logging=all"),
    )

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert holder.statuses() == {f"{name}/trial_0.json": status for name, status in STATUSES.items()}
    assert holder.trial("Passes/trial_0.json")["result"]["metrics"] == {"held": len(CANARIES) + 1}
    # By name, because it was given by name, and without its value.
    trial = holder.trial("Passes/trial_0.json")
    assert trial["env"]["env_vars"]["TOKEN"] == trial["request"]["overlay"]["TOKEN"] == "<redacted>"
    result.stdout.fnmatch_lines(["run it again: pytest *--aorta-extra-env TOKEN=... *"])
    assert "ValueError: x" in (holder.path / "out.xml").read_text()
    check(holder, result)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["elastic", "torchrun"])
def test_nor_do_the_ranks_of_a_distributed_trial_leave_any(holder: Stage, launcher: str) -> None:
    holder.copy(HERE / "spilling_ranks.py")
    broken = ["RaisesOnRank1"] if launcher == "torchrun" else ["RaisesOnRank1", "AbortsOnRank1"]

    result = holder.run(
        *(*(f"spilling_ranks.py::{name}" for name in broken), "--aorta-extra-env", f"TOKEN={GIVEN}"),
        *("--aorta-launcher", launcher, "-vv", "--showlocals", "--junitxml", "out.xml"),
    )

    assert holder.statuses() == {f"{name}/trial_0.json": "workload_failed" for name in sorted(broken)}
    for trial in holder.trials().values():
        assert trial["failure"]["rank"] == 1
    check(holder, result)


@pytest.mark.slow
def test_in_pytest_s_own_process_only_what_showlocals_is_asked_for_shows_locals(holder: Stage) -> None:
    run = (
        *("spilling_workloads.py", "-k", "Passes or Fails or Raises", "--aorta-isolation", "none"),
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


WRONG = {
    "no name": [f"{GIVEN}"],
    "base64": [f"{GIVEN}/+=="],
    "a dash": [f"MY-TOKEN={GIVEN}"],
    "a number": [f"1TOKEN={GIVEN}"],
    "a space": [f"TOKEN ={GIVEN}"],
    "a name too late": [f"{GIVEN},TOKEN=x"],
    "one right": [f"TOKEN={GIVEN}", f"={GIVEN}"],
}


@pytest.mark.parametrize("given", WRONG.values(), ids=WRONG)
def test_a_mistake_in_the_extra_variables_is_told_without_them(
    holder: Stage, monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    typed = holder.run_here("spilling_workloads.py", *(f"--aorta-extra-env={text}" for text in given))
    monkeypatch.setenv("PYTEST_AORTA_EXTRA_ENV", given[-1])
    exported = holder.run_here("spilling_workloads.py")

    for result in (typed, exported):
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: *"])
        check(holder, result)
    typed.stderr.fnmatch_lines(["ERROR: *extra*"])


BROKEN = {
    "a list": {"mitigations": {"mine": {"TOKEN": [GIVEN]}}},
    "no mapping": {"mitigations": {"mine": GIVEN}},
    "an unknown key": {"environments": {"here": {"env": {"TOKEN": GIVEN}, "dokcer": "x"}}},
    "env is no mapping": {"environments": {"here": {"env": GIVEN}}},
    "env of a list": {"environments": {"here": {"env": {"TOKEN": {"value": GIVEN}}}}},
    "no name": {"mitigations": {"mine": {"": GIVEN}}},
    "the launcher's": {"mitigations": {"mine": {"RANK": GIVEN}}},
}


@pytest.mark.parametrize("sections", BROKEN.values(), ids=BROKEN)
def test_a_mistake_in_a_registry_file_is_told_without_the_values_of_variables(
    holder: Stage, sections: dict[str, Any]
) -> None:
    holder.write_registry(**sections)
    chosen = ("--aorta-mitigations", "mine") if "mitigations" in sections else ("--aorta-environment", "here")

    result = holder.run_here("spilling_workloads.py", "--aorta-registry-file", "registry.json", *chosen, "-vv")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *mine*" if "mitigations" in sections else "ERROR: *here*"])
    (holder.path / "registry.json").unlink()
    check(holder, result)


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

        @pytest.mark.aorta
        def test_marked_unknown(aorta_trial, bundles):
            aorta_trial("no_such_thing", extra_env=bundles[0])

        def test_api_unknown(bundles):
            run_trials(RunRequest("no_such_thing", 1, extra_env=dict(bundles[0])))

        def test_api_refused(bundles):
            run_trials(RunRequest("gemm", 1, extra_env=dict(bundles[1])))
        """
    )

    result = holder.run("test_wrong.py", "-vv", "--showlocals", "--junitxml", "out.xml")

    result.assert_outcomes(failed=5)
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
        def aorta_extra_env():
            return {value}
        """
    )

    result = holder.run_here("spilling_workloads.py::Passes", "-vv")

    result.assert_outcomes(errors=1)
    check(holder, result)
