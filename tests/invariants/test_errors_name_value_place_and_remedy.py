"""Every error message names the bad value, the place it came from and what would be valid."""

from __future__ import annotations

import re

import pytest
from support.stage import Stage

PLAIN = ("--aorta-workload", "plain")

TYPED = ("--aorta-workload", "typed")

#: Arguments, and what the one line of the error has to say.
BAD = {
    "workload": (("--aorta-workload", "plian"), "unknown workload 'plian'; available: .*plain.*did you mean 'plain'"),
    "environment": (
        (*PLAIN, "--aorta-environment", "lokal"),
        "unknown environment 'lokal'; available: default, local; did you mean 'local'",
    ),
    "mitigation": (
        (*PLAIN, "--aorta-mitigations", "none,tf32off"),
        "unknown mitigation 'tf32off'; available: .*; did you mean 'tf32_off'",
    ),
    "collector": ((*PLAIN, "--aorta-collect", "rokprof"), "unknown collector 'rokprof'; available: .*rocprof"),
    "trials 0": ((*PLAIN, "--aorta-trials", "0"), "--aorta-trials: '0' is not valid; expected a whole number of at le"),
    "trials x": ((*PLAIN, "--aorta-trials", "x"), "--aorta-trials: 'x' is not valid; expected a whole number of at le"),
    "timeout 0": ((*PLAIN, "--aorta-timeout", "0"), "--aorta-timeout: '0' is not valid; expected a number of seconds"),
    "timeout nan": ((*PLAIN, "--aorta-timeout", "nan"), "--aorta-timeout: 'nan' is not valid; expected a number of se"),
    "isolation": ((*PLAIN, "--aorta-isolation", "thread"), "--aorta-isolation: 'thread' .*one of fork, spawn, none"),
    "extra-env": ((*PLAIN, "--aorta-extra-env", "NOVALUE"), "--aorta-extra-env: a text without '=' .*NAME=VALUE"),
    "extra-env name": ((*PLAIN, "--aorta-extra-env", "A B=secret"), "--aorta-extra-env: 'A B' .*letters, digits and"),
    "rank": ((*PLAIN, "--aorta-extra-env", "RANK=0"), "the extra variables: RANK is set by the launcher of the ranks"),
    "config": ((*TYPED, "--aorta-config", "size"), "--aorta-config: 'size' is not valid; expected KEY=VALUE"),
    "config key": ((*TYPED, "--aorta-config", "siez=2"), "Typed has no option 'siez'; valid: mode, size"),
    "config type": ((*TYPED, "--aorta-config", "size=big"), "Typed: size='big': .*valid integer"),
    "steps": ((*TYPED, "--aorta-steps", "3"), "Typed has no option 'steps'; valid: mode, size"),
    "same set": (
        (*PLAIN, "--aorta-mitigations", "omp_1", "--aorta-mitigations", "omp_1"),
        "mitigation set 'omp_1' is given twice; for more trials use --aorta-trials",
    ),
    "same workload": ((*PLAIN, *PLAIN), "workload 'plain' is given twice"),
    "no registry file": ((*PLAIN, "--aorta-registry-file", "none.json"), "none.json.*No such file or directory"),
    "broken registry file": ((*PLAIN, "--aorta-registry-file", "broken.json"), r"broken.json:2:1: not valid JSON"),
    "wrong registry file": (
        (*PLAIN, "--aorta-registry-file", "wrong.json"),
        "wrong.json: unknown key 'mitigation'; va",
    ),
    "name twice": (
        (*PLAIN, "--aorta-registry-file", "twice.json"),
        "'tf32_off' is offered twice, by .* and by .*twice",
    ),
    "nproc": ((*PLAIN, "--aorta-nproc", "2"), "workload plain is single_process; --aorta-nproc 2 does not apply to it"),
    "empty": ((*PLAIN, "--aorta-mitigations", "none,"), "--aorta-mitigations: 'none,' .*names separated by commas"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_value_is_one_line_that_names_it_and_what_is_valid(offered: Stage, name: str) -> None:
    (offered.path / "broken.json").write_text("{\n")
    (offered.path / "wrong.json").write_text('{"version": 1, "mitigation": {}}')
    offered.write_registry("twice.json", mitigations={"tf32_off": {}})
    arguments, message = BAD[name]
    result = offered.run_here(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in result.errlines if line.strip()]
    assert len(lines) == 1
    assert re.search(f"^ERROR: .*{message}", lines[0])
    assert "secret" not in lines[0]
    assert not any(line.startswith(("Traceback", "INTERNALERROR")) for line in result.outlines)
    assert offered.files() == []
    assert offered.left_running() == []


def test_bad_value_names_the_ini_file_or_the_variable_it_came_from(
    offered: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (offered.path / "pytest.ini").write_text("[pytest]\naorta_trials = many\n")
    result = offered.run_here(*PLAIN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: aorta_trials in */pytest.ini: 'many' is not valid; expected a whole number *"])
    monkeypatch.setenv("PYTEST_AORTA_TRIALS", "few")
    result = offered.run_here(*PLAIN)
    result.stderr.fnmatch_lines(["ERROR: the environment variable PYTEST_AORTA_TRIALS: 'few' is not valid; expected *"])
    # Not even a look at the value when it is overruled, and none when pytest is only asked for help.
    offered.run_here(*PLAIN, "--aorta-trials", "2").assert_outcomes(passed=2)
    for flag in ("--help", "--version"):
        assert offered.run_here(flag).ret == pytest.ExitCode.OK
