"""Command line, environment variables and ini file: what they mean, which wins, and what is said of a mistake."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.plans import typed
from support.stage import Stage

from pytest_aorta.plan import Selection
from pytest_aorta.plugin.options import is_mentioned, read_selection
from pytest_aorta.settings import BY_NAME, SETTINGS, OptionError, Setting, shown_command
from pytest_aorta.triage import Stop
from pytest_aorta.trials.execution import Execution, Limits, Resources

NO_VARIABLES: Mapping[str, str] = {}
SECRET = "hunter2"


def on_command_line(setting: Setting, text: str) -> tuple[str, ...]:
    if setting.is_switch:
        return () if text == "off" else (setting.flag,)
    return (f"{setting.flag}={text}",) if setting.scope == "option" else ("-o", f"{setting.ini}={text}")


def configure(pytester: pytest.Pytester, *arguments: str, ini: str = "") -> pytest.Config:
    pytester.makeini(f"[pytest]\n{ini}")
    return pytester.parseconfig(*arguments)


def read(
    pytester: pytest.Pytester, *arguments: str, environ: Mapping[str, str] = NO_VARIABLES, ini: str = ""
) -> Selection:
    """What a pytest with these arguments would be asked to do."""
    return read_selection(configure(pytester, *arguments, ini=ini), environ)


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
        *("--aorta-preload", "torch,numpy.linalg", "-o", "aorta_order=random", "--aorta-registry-file", "/a.json"),
        *("--aorta-cwd", "fresh", "--aorta-slots", "3,own-cores", "--aorta-devices", "0,2-3"),
        *("--aorta-host", "2*popen", "--aorta-host", "ssh=gpu7"),
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
        execution=Execution(
            isolation="spawn", launcher="torchrun", nproc=2, preload=("torch", "numpy.linalg"), cwd="fresh"
        ),
        limits=Limits(timeout=1.5, stall_timeout=0.5, grace=0.0, memory=3 * 2**29, log_limit=4096),
        replays=(Path("/results/trial_0.json"),),
        resources=Resources(slots=3, devices=(0, 2, 3), hosts=("popen", "popen", "ssh=gpu7"), own_cores=True),
    )


@pytest.mark.parametrize(
    ("arguments", "sets"),
    [
        (["--aorta-mitigations", "A=1,B=2"], (("A=1", "B=2"),)),
        (["--aorta-mitigations", "A=1,2,tf32_off,B=x:1,y:2"], (("A=1,2", "tf32_off", "B=x:1,y:2"),)),
        (["--aorta-vary", "A=1,2"], (("A=1",), ("A=2",))),
        (["--aorta-vary", "config.lr=1,2"], (("config.lr=1",), ("config.lr=2",))),
        (["--aorta-vary", "A=,2", "--aorta-mitigations", "none", "--aorta-mitigations", "xnack"],
         (("A=",), ("A=2",), ("xnack", "A="), ("xnack", "A=2"))),
        (["--aorta-vary", "A=1,2", "--aorta-vary", "B=3,4"],
         (("A=1", "B=3"), ("A=1", "B=4"), ("A=2", "B=3"), ("A=2", "B=4"))),
    ],
)  # fmt: skip
def test_variables_are_mitigations(
    pytester: pytest.Pytester, arguments: list[str], sets: tuple[tuple[str, ...], ...]
) -> None:
    assert read(pytester, *arguments).mitigations == sets


def test_a_secret_is_no_name(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--aorta-workload", "gemm", "--aorta-mitigations", "API_TOKEN=hunter2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*mitigation API_TOKEN=... may hold a secret*use --aorta-extra-env*"])


#: One of each kind: repeated, with a separator of its own, a single value, an ini key without option, a switch.
GIVEN = {
    "workload": ("fsdp", "gemm", "allreduce"),
    "command": ("python a.py", "bash -c 'b; c'", "d"),
    "metric": (r"loss (?P<loss>\S+)", "(?P<a>.);", "(?P<b>.)"),
    "trials": ("2", "3", "4"),
    "extra-env": ("A=1,B=2", "A=3", "A=4"),
    "history": ("1", "2", "all"),
    "grace": ("0", "1", "2"),
    "elastic": ("max_restarts=1", "nnodes=1:2", "tee=0:3,1:1"),
    "shard": ("1/2", "2/2", "3/4"),
    "slots": ("2", "3,own-cores", "own-cores"),
    "stop": ("8h", "decided", "decided,1h30m"),
    "resume": ("", "off", "True"),  # alone on the command line
}


@pytest.mark.parametrize("name", GIVEN)
def test_the_command_line_wins_over_the_environment_and_that_over_the_ini_file(
    pytester: pytest.Pytester, name: str
) -> None:
    each = BY_NAME[name]
    option, exported, written = GIVEN[name]
    ini = f"{each.ini} = {written}"
    alone = [read(pytester, *on_command_line(each, text)) for text in GIVEN[name]]
    assert read(pytester, *on_command_line(each, option), environ={each.variable: exported}, ini=ini) == alone[0]
    assert read(pytester, environ={each.variable: exported}, ini=ini) == alone[1]
    assert read(pytester, environ={each.variable: ""}, ini=ini) == alone[2]
    assert is_mentioned(configure(pytester), {each.variable: exported})
    assert is_mentioned(configure(pytester, ini=ini), NO_VARIABLES)


def test_a_relative_registry_file_of_an_ini_file_is_relative_to_that_file(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pytester.path / "sub").mkdir()
    config = configure(pytester, ini="aorta_registry_file = here.json")
    monkeypatch.chdir(pytester.path / "sub")
    assert read_selection(config, NO_VARIABLES).registry_files == (pytester.path / "here.json",)
    (pytester.path / "sub" / "here.json").write_text("{}")
    assert read_selection(config, NO_VARIABLES).registry_files == (Path("here.json"),)


SETTINGS_FILE = """
aorta_workload = ["plain"]
aorta_trials = "2"
aorta_mitigations = ["none", "mine,omp_1"]
aorta_environment = ["default"]
aorta_extra_env = ["SEEN=a,b", "OTHER=1"]
aorta_config = ["x=[1, 2]", "y=z"]
aorta_results_dir = "out"
aorta_order = "grouped"
aorta_registry_file = ["mine.json"]
"""


@pytest.mark.parametrize("source", ["pyproject.toml", "pytest.toml"])
def test_a_run_can_be_configured_in_files(offered: Stage, source: str) -> None:
    offered.write_registry("mine.json", mitigations={"mine": {"MINE": "1"}})
    if source == "pytest.toml" and pytest.version_tuple < (9,):
        pytest.skip("pytest has native TOML since 9.0")
    native = source == "pytest.toml"
    section = "[pytest]" if native else "[tool.pytest.ini_options]"
    offered.write_file(source, section + SETTINGS_FILE.replace('"2"', "2" if native else '"2"'))
    result = offered.run_here("-v")
    result.assert_outcomes(passed=4)
    names = [f"plain[default-{names}-{index}]" for names in ("none", "mine+omp_1") for index in (0, 1)]
    assert list(offered.words(result)) == names
    offered.results = offered.path / "out"
    trial = offered.trial("plain/default-mine+omp_1/trial_1.json")
    assert trial["config"] == {"x": [1, 2], "y": "z"}
    assert trial["result"]["metrics"]["SEEN"] == "a,b"
    assert trial["env"]["env_vars"].items() >= {"MINE": "1", "OTHER": "1", "OMP_NUM_THREADS": "1"}.items()


# What ends a run, and searches


def searched(pytester: pytest.Pytester, mitigations: str, *arguments: str) -> Selection:
    """As ``pytest-aorta minimize`` asks for it."""
    words = [f"{BY_NAME['minimize'].hidden}={mitigations}", f"{BY_NAME['max-trials'].hidden}=7"]
    config = configure(pytester, *words, *arguments)
    assert is_mentioned(config, NO_VARIABLES)
    return read_selection(config, NO_VARIABLES)


def test_what_ends_a_run_decides_how_many_trials_there_are_at_most(pytester: pytest.Pytester) -> None:
    assert read(pytester, "--aorta-stop=decided").trials == searched(pytester, "a").trials == 200
    assert read(pytester, "--aorta-stop", "1h").trials == 10_000
    cells = [word for number in range(40) for word in ("--aorta-mitigations", f"m{number}")]
    assert read(pytester, "--aorta-stop", "1h", *cells).trials == 250
    assert read(pytester, "--aorta-stop", "1h", *cells, *cells, *cells).trials == 100
    assert read(pytester, "--aorta-stop", "1h", "--aorta-trials", "3").trials == 3
    # A run that may end early is judged sequentially.
    assert read(pytester, "--aorta-stop", "8h").triage.sequential
    assert not read(pytester, "--aorta-trials", "3").triage.sequential
    with pytest.raises(OptionError, match="aorta_order random and --aorta-stop with a time: whole"):
        read(pytester, "--aorta-stop", "1h", "-o", "aorta_order=random")


def test_a_search_has_two_cells(pytester: pytest.Pytester) -> None:
    selection = searched(pytester, "a,b", "--aorta-mitigations", "c")
    assert selection.mitigations == (("c",), ("a", "b"))
    assert (selection.triage.baseline, selection.max_trials, selection.triage.sequential) == ("c", 7, True)


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        *((f"{text}", Stop(seconds=90)) for text in ("90s", "90", "1m30s", " 1.5m ")),
        ("1d2h3m4.5s, decided", Stop(decided=True, seconds=93784.5)),
        ("decided,confirm=0", Stop(decided=True, confirm=False)),
        ("first-fix", Stop(decided=True, first_fix=True)),
        ("equivalence,8h", Stop(decided=True, equivalence=True, seconds=28800)),
    ],
)
def test_a_run_ends_after_a_time_and_when_it_is_decided(text: str, stop: Stop) -> None:
    assert BY_NAME["stop"].parse(text) == stop


@pytest.mark.parametrize(
    "text", ["", "0", "8x", "h", "1m1h", "-1h", "1.2.3h", "8 hours", "inf", "nan", "1h,2h", "decided,decided"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration such as 8h, 1h30m, 90s"):
        BY_NAME["stop"].parse(text)


# Variables of trials


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("A=1", {"A": "1"}),
        ("A=1,B=x,y,C=3", {"A": "1", "B": "x,y", "C": "3"}),
        ("A=,B=", {"A": "", "B": ""}),
        ("A=a=b,c=d", {"A": "a=b", "c": "d"}),
        ("A=1,2=3,", {"A": "1,2=3,"}),
        ("A=1, B=2", {"A": "1, B=2"}),
        ("A=1,A=2", {"A": "2"}),
        ("_a1=é\n", {"_a1": "é\n"}),
        ("NCCL_DEBUG_SUBSYS=INIT,COLL,NCCL_DEBUG=INFO", {"NCCL_DEBUG_SUBSYS": "INIT,COLL", "NCCL_DEBUG": "INFO"}),
    ],
)
def test_a_comma_starts_a_new_variable_only_before_a_name_and_an_equals_sign(text: str, pairs: dict[str, str]) -> None:
    assert BY_NAME["extra-env"].parse(text) == pairs


def test_in_a_variable_a_semicolon_starts_a_new_pair_by_the_same_rule(pytester: pytest.Pytester) -> None:
    environ = {"PYTEST_AORTA_EXTRA_ENV": "A=x;y,z;B=2,C=3;"}
    assert read(pytester, environ=environ).extra_env == {"A": "x;y,z", "B": "2", "C": "3;"}
    assert read(pytester, environ={"PYTEST_AORTA_WORKLOAD": "gemm;fsdp"}).workloads == ("gemm", "fsdp")


@pytest.mark.parametrize(
    "text", [*(f"{name}={SECRET}" for name in ("1TOKEN", "MY-TOKEN", "", " TOKEN", "X,TOKEN")), SECRET, f"{SECRET},A"]
)
def test_the_value_of_a_variable_is_never_repeated(pytester: pytest.Pytester, text: str) -> None:
    for arguments, environ in (([f"--aorta-extra-env={text}"], NO_VARIABLES), ([], {"PYTEST_AORTA_EXTRA_ENV": text})):
        with pytest.raises(OptionError, match=r"(?i)extra[-_]env.*NAME=VALUE") as caught:
            read(pytester, *arguments, environ=environ)
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "host",
    [
        f"popen//env:TOKEN={SECRET}//speed=9",
        f"2*env:TOKEN={SECRET}",
        f"popen//env:A=1//Env:TOKEN={SECRET}",
        f"ssh=a//popen//env:A/B={SECRET}/{SECRET}=",
    ],
)
def test_the_value_of_a_host_s_variable_is_not_repeated_either(host: str) -> None:
    with pytest.raises(OptionError, match=r"--aorta-host: .*\.\.\.") as caught:
        read_selection(typed(aorta_host=[host]), NO_VARIABLES)
    assert SECRET not in str(caught.value)


# Mistakes; tests/test_run_request.py and tests/invariants have tables of what is refused


#: Texts that are nearly numbers, sizes, lists and pairs, and numbers larger than anything.
odd_texts = (
    st.text()
    | st.text(alphabet=st.characters(codec=None), max_size=6)
    | st.text(alphabet="0123456789.+-_eEinfa KMGTkiB\u212a\u0663\u00b2", max_size=8)
    | st.text(alphabet="Aa_1=,; \0", max_size=8)
    | st.integers(1, 6000).map(lambda count: "9" * count)
)


# "auto" counts what this machine has.
@given(st.dictionaries(st.sampled_from(SETTINGS), odd_texts.filter(lambda text: text.strip() != "auto"), max_size=3))
@example({BY_NAME["registry-file"]: "~nobody-of-this-name/registry.json"})
@example({BY_NAME["registry-file"]: "a\0b"})
@example({BY_NAME["memory"]: "3\u212a"})
@example({BY_NAME["log-limit"]: "9" * 305 + "T"})
@example({BY_NAME["host"]: "9" * 5000 + "*popen"})
@example({BY_NAME["host"]: "//"})
@example({BY_NAME["host"]: "0 "})
@example({BY_NAME["command"]: "A=0"})
@example({BY_NAME["collect-on-failure"]: "1"})
def test_whatever_is_typed_it_is_a_selection_or_an_option_error_that_names_value_and_source(
    given_texts: dict[Setting, str],
) -> None:
    config = typed(**{each.ini: [text] if each.repeat else text for each, text in given_texts.items()})
    try:
        assert isinstance(read_selection(config, NO_VARIABLES), Selection)
    except OptionError as error:
        answer = str(error)
    else:
        return
    place = answer.partition(": ")[0]
    if " and " in place or answer.endswith(" beside it"):  # two that do not fit, or one that needs another
        assert any(each.flag in place or each.ini in place for each in given_texts)
        return
    (wrong,) = (each for each in given_texts if answer.startswith(f"{each.flag}: "))
    text = given_texts[wrong]
    if wrong.name == "host":
        text = (text.partition("*")[0] if text[:5].isdecimal() else text).strip()
    if wrong.name == "command":  # whose variables may have secrets
        assert shown_command(text) in answer
    elif wrong.name != "extra-env":
        assert text in answer or repr(text) in answer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--aorta-grace", "5"],
            "--aorta-grace: there is no such option; it is a setting of the ini file: -o aorta_grace=VALUE",
        ),
        (["--aorta-trial=3"], "--aorta-trial: there is no such option; did you mean --aorta-trials[?]"),
        (["--aorta-nonsense"], "pytest --help lists those of pytest-aorta"),
    ],
)
def test_an_option_that_is_called_otherwise_is_refused_with_its_name(
    pytester: pytest.Pytester, arguments: list[str], message: str
) -> None:
    result = pytester.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{message}*"])


def test_the_help_of_all_options_and_ini_keys_fits_two_screens(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = pytester.runpytest_inprocess("--help").outlines
    for each in SETTINGS:
        flag = f"  {each.flag}" if each.scope == "option" else f"  {each.ini} ("
        assert each.scope not in ("option", "ini") or any(line.startswith(flag) for line in lines), flag
    groups = [list(group) for _, group in itertools.groupby(lines, key=bool)]
    ours = [line for group in groups if group[0].startswith("aorta: ") for line in group]
    assert 30 < len(ours) <= 66


def test_an_option_of_a_conftest_may_begin_like_ours(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--aorta-trial')")
    assert pytester.runpytest_inprocess("--aorta-trial=3").ret == pytest.ExitCode.NO_TESTS_COLLECTED
