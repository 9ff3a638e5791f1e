"""Command line, environment variables and ini file: what they mean, and which wins."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from option_reading import NO_VARIABLES, configure, on_command_line, option, read

from pytest_aorta.plan import Selection
from pytest_aorta.plugin.options import CommandSettings, is_mentioned, read_selection
from pytest_aorta.settings import OptionError
from pytest_aorta.trials.execution import Execution, Limits, Resources


def test_without_any_option_the_selection_is_the_default(pytester: pytest.Pytester) -> None:
    config = configure(pytester)

    assert read_selection(config, NO_VARIABLES) == Selection()
    assert not is_mentioned(config, NO_VARIABLES)


def test_every_option_reaches_the_selection(pytester: pytest.Pytester) -> None:
    selection = read(
        pytester,
        *("--aorta-workload", "fsdp", "--aorta-workload", "gemm", "--aorta-trials", "4"),
        *("--aorta-environment", "local", "--aorta-environment", "rocm7-venv"),
        *("--aorta-mitigations", "none", "--aorta-mitigations", "tf32_off,xnack"),
        *("--aorta-extra-env", "A=1,B=2", "--aorta-extra-env", "C=3"),
        *("--aorta-steps", "20", "--aorta-config", "size=64", "--aorta-config", "dtype=float32"),
        *("--aorta-collect", "rocprof,numerics", "--aorta-results-dir", "out", "--aorta-timeout", "1.5"),
        *("-o", "aorta_stall_timeout=0.5", "-o", "aorta_grace=0", "--aorta-memory", "1.5G", "-o", "aorta_log_limit=4k"),
        *("--aorta-resume", "-o", "aorta_history=3", "--aorta-replay", "/results/trial_0.json"),
        *("--aorta-isolation", "spawn", "--aorta-nproc", "2", "--aorta-launcher", "torchrun"),
        *("--aorta-preload", "torch,numpy.linalg"),
        *("-o", "aorta_order=random", "--aorta-registry-file", "/a.json"),
        *(
            "--aorta-slots",
            "3,own-cores",
            "--aorta-devices",
            "0,2-3",
            "--aorta-host",
            "2*popen",
            "--aorta-host",
            "ssh=gpu7",
        ),
    )

    assert selection == Selection(
        workloads=("fsdp", "gemm"),
        trials=4,
        environments=("local", "rocm7-venv"),
        mitigations=(("none",), ("tf32_off", "xnack")),
        extra_env={"A": "1", "B": "2", "C": "3"},
        steps=20,
        config={"size": "64", "dtype": "float32"},
        collect=("rocprof", "numerics"),
        results_dir=Path("out"),
        resume=True,
        history=3,
        order="random",
        registry_files=(Path("/a.json"),),
        execution=Execution(isolation="spawn", launcher="torchrun", nproc=2, preload=("torch", "numpy.linalg")),
        limits=Limits(timeout=1.5, stall_timeout=0.5, grace=0.0, memory=3 * 2**29, log_limit=4096),
        replays=(Path("/results/trial_0.json"),),
        resources=Resources(slots=3, devices=(0, 2, 3), hosts=("popen", "popen", "ssh=gpu7"), own_cores=True),
    )


#: One of each kind: repeated, with a separator of its own, a single value, an ini key without option.
GIVEN = {
    "workload": ("fsdp", "gemm", "allreduce"),
    "command": ("python a.py", "bash -c 'b; c'", "d"),
    "metric": (r"loss (?P<loss>\S+)", "(?P<a>.);", "(?P<b>.)"),
    "trials": ("2", "3", "4"),
    "extra-env": ("A=1,B=2", "A=3", "A=4"),
    "history": ("1", "2", "all"),
    "grace": ("0", "1", "2"),
    "elastic": ("max_restarts=1", "nnodes=1:2", "tee=0:3,1:1"),
    "shard": ("1/2", "2/2:b.json", "3/4:c.json"),
    "slots": ("2", "3,own-cores", "own-cores"),
    "stop": ("8h", "decided", "decided,1h30m"),
}


def test_a_switch_stands_alone_on_the_command_line_and_is_true_or_false_elsewhere(pytester: pytest.Pytester) -> None:
    assert not read(pytester).resume
    assert read(pytester, "--aorta-resume", environ={"PYTEST_AORTA_RESUME": "no"}).resume
    assert read(pytester, environ={"PYTEST_AORTA_RESUME": "1"}, ini="aorta_resume = false").resume
    assert not read(pytester, environ={"PYTEST_AORTA_RESUME": "off"}, ini="aorta_resume = true").resume
    assert read(pytester, ini="aorta_resume = True").resume
    with pytest.raises(OptionError, match="PYTEST_AORTA_RESUME: 'maybe' is not valid; expected true or false"):
        read(pytester, environ={"PYTEST_AORTA_RESUME": "maybe"})


@pytest.mark.parametrize("name", GIVEN)
def test_the_command_line_wins_over_the_environment_and_that_over_the_ini_file(
    pytester: pytest.Pytester, name: str
) -> None:
    each = option(name)
    typed, exported, written = GIVEN[name]
    ini = f"{each.ini} = {written}"
    alone = [read(pytester, *on_command_line(each, text)) for text in GIVEN[name]]

    assert read(pytester, *on_command_line(each, typed), environ={each.variable: exported}, ini=ini) == alone[0]
    assert read(pytester, environ={each.variable: exported}, ini=ini) == alone[1]
    assert read(pytester, ini=ini) == alone[2]
    assert read(pytester, environ={each.variable: ""}, ini=ini) == alone[2]


@pytest.mark.parametrize("name", GIVEN)
def test_an_option_from_anywhere_is_mentioned(pytester: pytest.Pytester, name: str) -> None:
    each = option(name)
    text = GIVEN[name][0]

    assert is_mentioned(configure(pytester, *on_command_line(each, text)), NO_VARIABLES)
    assert is_mentioned(configure(pytester), {each.variable: text})
    assert is_mentioned(configure(pytester, ini=f"{each.ini} = {text}"), NO_VARIABLES)


def test_repeated_options_take_lines_in_a_file_and_semicolons_in_a_variable(pytester: pytest.Pytester) -> None:
    expected = replace(Selection(), mitigations=(("none",), ("a", "b")), environments=("local", "x"))

    ini = "aorta_mitigations =\n  none\n  a,b\naorta_environment =\n  local\n  x"
    assert read(pytester, ini=ini) == expected
    environ = {"PYTEST_AORTA_MITIGATIONS": "none;a,b", "PYTEST_AORTA_ENVIRONMENT": "local; x;"}
    assert read(pytester, environ=environ) == expected


def test_a_relative_registry_file_of_an_ini_file_is_relative_to_that_file(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pytester.path / "sub").mkdir()
    config = configure(pytester, ini="aorta_registry_file = here.json")
    monkeypatch.chdir(pytester.path / "sub")

    assert read_selection(config, NO_VARIABLES).registry_files == (pytester.path / "here.json",)

    (pytester.path / "sub" / "here.json").write_text("{}")
    assert read_selection(config, NO_VARIABLES).registry_files == (Path("here.json"),)


def searched(pytester: pytest.Pytester, mitigations: str, *arguments: str) -> Selection:
    """As ``pytest-aorta minimize`` asks for it."""
    config = configure(pytester, *arguments)
    CommandSettings(minimize=mitigations, max_trials="7").pytest_configure(config)
    assert is_mentioned(config, NO_VARIABLES)
    return read_selection(config, NO_VARIABLES)


def test_what_ends_a_run_decides_how_many_trials_there_are_at_most(pytester: pytest.Pytester) -> None:
    assert read(pytester, "--aorta-stop=decided").trials == 200
    assert searched(pytester, "a").trials == 200
    assert read(pytester, "--aorta-stop", "1h").trials == 10_000
    cells = [word for number in range(40) for word in ("--aorta-mitigations", f"m{number}")]
    assert read(pytester, "--aorta-stop", "1h", *cells).trials == 250
    assert read(pytester, "--aorta-stop", "1h", *cells, *cells, *cells).trials == 100
    assert read(pytester, "--aorta-stop", "1h", "--aorta-trials", "3").trials == 3


def test_a_run_that_may_end_early_is_judged_sequentially(pytester: pytest.Pytester) -> None:
    assert not read(pytester, "--aorta-trials", "3").triage.sequential
    for arguments in (["--aorta-stop=decided"], ["--aorta-stop", "8h"]):
        assert read(pytester, *arguments).triage.sequential
    assert searched(pytester, "a").triage.sequential


def test_a_search_has_two_cells(pytester: pytest.Pytester) -> None:
    found = searched(pytester, "a,b", "--aorta-mitigations", "c")
    assert found.mitigations == (("c",), ("a", "b"))
    assert (found.triage.baseline, found.max_trials) == ("c", 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--aorta-stop", "1h", "-o", "aorta_order=random"], "aorta_order random and --aorta-stop with a time: whole"),
    ],
)
def test_what_cannot_be_combined_is_refused(pytester: pytest.Pytester, arguments: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read(pytester, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--aorta-own-cores"], "--aorta-own-cores: there is no such option; use --aorta-slots=N,own-cores"),
        (["--aorta-until-decided"], "use --aorta-stop=decided"),
        (["--aorta-duration=8h"], "use --aorta-stop=8h"),
        (["--aorta-grace", "5"], "use -o aorta_grace=VALUE, or the ini file"),
    ],
)
def test_an_option_that_is_called_otherwise_is_refused_with_its_name(
    pytester: pytest.Pytester, arguments: list[str], message: str
) -> None:
    result = pytester.runpytest_subprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{message}*"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--aorta-stop=decided"], "pytest-aorta minimize and --aorta-stop: use one"),
        (
            ["--aorta-mitigations", "b", "--aorta-mitigations", "c"],
            "--aorta-mitigations b and c: with pytest-aorta minimize, expected one other mitigation set",
        ),
    ],
)
def test_what_a_search_cannot_be_combined_with_is_refused(
    pytester: pytest.Pytester, arguments: list[str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        searched(pytester, "a", *arguments)


def test_the_help_of_all_options_fits_two_screens(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = pytester.runpytest_subprocess("--help").outlines
    groups = [list(group) for _, group in itertools.groupby(lines, key=bool)]
    ours = [line for group in groups if group[0].startswith("aorta: ") for line in group]
    assert 30 < len(ours) <= 60
