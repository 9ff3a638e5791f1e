"""The log of decisions."""

from __future__ import annotations

import sys

from support.stage import Stage, text

_HANGS = """
    import os, time
    time.sleep(1000 if os.environ["AORTA_TRIAL"] == "1" else 0)
"""


def test_each_decision_on_a_run_with_a_killed_trial_is_in_the_log(stage: Stage) -> None:
    stage.write(hangs=_HANGS)
    words = ("--aorta-command", f"{sys.executable} hangs.py", "--aorta-trials", "2", "--aorta-timeout", "3")
    name = "command-hangs[local-none-{}]"
    log = {"PYTEST_AORTA_LOG": "debug decisions.log"}
    done = stage.run(*words, env=log)
    done.assert_outcomes(passed=1, failed=1)
    stage.run(*words, "--aorta-resume", "--aorta-trials", "3", env=log)
    lines = (stage.path / "decisions.log").read_text().splitlines()
    for wanted in (
        "pytest_aorta.workspace.trial_store: store * opened by run",
        "pytest_aorta.launch.host.cell_zygotes: the first zygote of command-hangs is ready",
        f"pytest_aorta.launch.job: slot 0 takes {name.format(0)}",
        f"pytest_aorta.launch.job: {name.format(0)} is over: ok",
        f"pytest_aorta.launch.host.supervisor: {name.format(1)}: the deadline has passed in run; SIGTERM, and SIGKILL",
        f"pytest_aorta.launch.job: {name.format(1)} is over: timeout",
        f"pytest_aorta.trial_runner: {name.format(0)}: the earlier result is kept",
        f"pytest_aorta.launch.job: {name.format(2)} is over: ok",
    ):
        assert any(all(part in line for part in wanted.split(" * ")) for line in lines), (wanted, lines)


def test_a_result_that_is_not_kept_is_logged_with_the_reason(stage: Stage) -> None:
    log = {"PYTEST_AORTA_LOG": "info decisions.log"}
    for value in ("1", "2"):
        extra = ("--aorta-extra-env", f"A={value}")
        stage.run("--aorta-command", f"{sys.executable} -c 0", "--aorta-resume", *extra, env=log)
    said = (stage.path / "decisions.log").read_text()
    assert "the earlier result is not kept: " in said
    assert "A changed" in said


def test_pytest_shows_it_as_that_of_any_library(stage: Stage) -> None:
    done = stage.run("--aorta-command", "false", "--log-level", "INFO")
    done.stdout.fnmatch_lines(["*Captured log*", "INFO *pytest_aorta.launch.job*slot 0 takes command-false*"])


def test_another_form_of_the_variable_is_refused(stage: Stage) -> None:
    for given in ("loud", "debug", "debug /nowhere/there/log"):
        done = stage.run("--aorta-command", "true", env={"PYTEST_AORTA_LOG": given})
        assert done.ret == 4
        assert f"PYTEST_AORTA_LOG='{given}': " in text(done)
    assert stage.aorta("list", env={"PYTEST_AORTA_LOG": "loud"}).ret != 0
