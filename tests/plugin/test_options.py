"""Command line, environment variables and ini file: what they mean, which wins, and what is said about mistakes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_aorta.option_table import OPTIONS, Option
from pytest_aorta.plan import Selection
from pytest_aorta.plugin.options import OptionError, is_mentioned, read_selection
from pytest_aorta.runtime.hosts.specs import without_values
from pytest_aorta.trials.execution import Execution, Resources
from pytest_aorta.trials.limits import Limits

NOBODY: Mapping[str, str] = {}


def option(name: str) -> Option:
    (found,) = (option for option in OPTIONS if option.name == name)
    return found


@pytest.fixture(autouse=True)
def nothing_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in OPTIONS:
        monkeypatch.delenv(each.variable, raising=False)


def read(pytester: pytest.Pytester, *arguments: str, environ: Mapping[str, str] = NOBODY, ini: str = "") -> Selection:
    """What a pytest with these arguments would be asked to do."""
    return read_selection(configure(pytester, *arguments, ini=ini), environ)


def configure(pytester: pytest.Pytester, *arguments: str, ini: str = "") -> pytest.Config:
    pytester.makeini(f"[pytest]\n{ini}")
    return pytester.parseconfig(*arguments)


def test_without_any_option_the_selection_is_the_default(pytester: pytest.Pytester) -> None:
    config = configure(pytester)

    assert read_selection(config, NOBODY) == Selection()
    assert not is_mentioned(config, NOBODY)


def test_every_option_reaches_the_selection(pytester: pytest.Pytester) -> None:
    selection = read(
        pytester,
        *("--aorta-workload", "fsdp", "--aorta-workload", "gemm", "--aorta-trials", "4"),
        *("--aorta-environment", "local", "--aorta-environment", "rocm7-venv"),
        *("--aorta-mitigations", "none", "--aorta-mitigations", "tf32_off,xnack"),
        *("--aorta-extra-env", "A=1,B=2", "--aorta-extra-env", "C=3"),
        *("--aorta-steps", "20", "--aorta-config", "size=64", "--aorta-config", "dtype=float32"),
        *("--aorta-collect", "rocprof,numerics", "--aorta-results-dir", "out", "--aorta-timeout", "1.5"),
        *("--aorta-stall-timeout", "0.5", "--aorta-grace", "0", "--aorta-memory", "1.5G", "--aorta-log-limit", "4k"),
        *("--aorta-resume", "--aorta-history", "3", "--aorta-own-cores", "--aorta-replay", "/results/trial_0.json"),
        *("--aorta-isolation", "spawn", "--aorta-nproc", "2", "--aorta-launcher", "torchrun"),
        *("--aorta-preload", "torch,numpy.linalg"),
        *("--aorta-order", "random", "--aorta-registry-file", "/a.json"),
        *("--aorta-slots", "3", "--aorta-devices", "0,2-3", "--aorta-host", "2*popen", "--aorta-host", "ssh=gpu7"),
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


GIVEN = {
    "workload": ("fsdp", "gemm", "allreduce"),
    "command": ("python a.py", "bash -c 'b; c'", "d"),
    "fail-on": ("nan", "a;b", "c|d"),
    "pass-on": ("fine", "a;b", "c|d"),
    "metric": (r"loss (?P<loss>\S+)", "(?P<a>.);", "(?P<b>.)"),
    "trials": ("2", "3", "4"),
    "environment": ("here", "there", "elsewhere"),
    "mitigations": ("a,b", "c", "d"),
    "extra-env": ("A=1,B=2", "A=3", "A=4"),
    "steps": ("2", "3", "4"),
    "config": ("a=1", "a=2", "a=3"),
    "collect": ("rocprof", "numerics", "amd_log"),
    "history": ("1", "2", "all"),
    "results-dir": ("x", "y", "z"),
    "timeout": ("1", "2", "3"),
    "stall-timeout": ("1", "2", "3"),
    "grace": ("0", "1", "2"),
    "memory": ("1M", "2GiB", "3"),
    "log-limit": ("1k", "2KB", "3T"),
    "isolation": ("spawn", "none", "fork"),
    "nproc": ("2", "3", "4"),
    "seed": ("0", "1", "2"),
    "replay": ("a.json", "results", "c.json"),
    "report": ("a.html", "b.html", "c.html"),
    "elastic": ("max_restarts=1", "nnodes=1:2", "tee=0:3,1:1"),
    "launcher": ("elastic", "torchrun", "external"),
    "order": ("grouped", "random", "interleaved"),
    "shard": ("1/2", "2/2", "3/4"),
    "durations": ("a.json", "b.json", "c.json"),
    "where": ("/config/lr<0.1", "/trial==1", "/environment==a;b"),
    "preload": ("none", "torch,numpy", "auto"),
    "slots": ("2", "3", "4"),
    "devices": ("0", "0-1", "0,2"),
    "host": ("popen", "ssh=a", "ssh=b"),
    "baseline": ("a", "local-b", "c"),
    "margin": ("0.1", "0.2", "0.3"),
    "duration": ("8h", "90s", "1h30m"),
    "gate": ("failures<1", "failure_rate(a)<=2%", "verdict!=worse"),
    "minimize": ("a,b", "c", "d"),
    "max-trials": ("2", "3", "4"),
    "registry-file": ("/x", "/y", "/z"),
}


def test_the_table_above_has_every_option() -> None:
    assert set(GIVEN) == {each.name for each in OPTIONS if not each.is_switch}


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
    alone = [read(pytester, each.flag, text) for text in GIVEN[name]]

    assert read(pytester, each.flag, typed, environ={each.variable: exported}, ini=ini) == alone[0]
    assert read(pytester, environ={each.variable: exported}, ini=ini) == alone[1]
    assert read(pytester, ini=ini) == alone[2]
    assert read(pytester, environ={each.variable: ""}, ini=ini) == alone[2]


@pytest.mark.parametrize("name", GIVEN)
def test_an_option_from_anywhere_is_mentioned(pytester: pytest.Pytester, name: str) -> None:
    each = option(name)
    text = GIVEN[name][0]

    assert is_mentioned(configure(pytester, each.flag, text), NOBODY)
    assert is_mentioned(configure(pytester), {each.variable: text})
    assert is_mentioned(configure(pytester, ini=f"{each.ini} = {text}"), NOBODY)


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

    assert read_selection(config, NOBODY).registry_files == (pytester.path / "here.json",)

    (pytester.path / "sub" / "here.json").write_text("{}")
    assert read_selection(config, NOBODY).registry_files == (Path("here.json"),)


# the comma rule of variables


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("A=1", {"A": "1"}),
        ("A=1,B=x,y,C=3", {"A": "1", "B": "x,y", "C": "3"}),
        ("A=", {"A": ""}),
        ("A=,B=", {"A": "", "B": ""}),
        ("A=1=2", {"A": "1=2"}),
        ("A=a=b,c=d", {"A": "a=b", "c": "d"}),
        ("A=1,", {"A": "1,"}),
        ("A=1,2=3", {"A": "1,2=3"}),
        ("A=1, B=2", {"A": "1, B=2"}),
        ("A=x y;z", {"A": "x y;z"}),
        ("A=1,A=2", {"A": "2"}),
        ("_a1=é\n", {"_a1": "é\n"}),
        ("NCCL_DEBUG_SUBSYS=INIT,COLL,NCCL_DEBUG=INFO", {"NCCL_DEBUG_SUBSYS": "INIT,COLL", "NCCL_DEBUG": "INFO"}),
    ],
)
def test_a_comma_starts_a_new_variable_only_before_a_name_and_an_equals_sign(text: str, pairs: dict[str, str]) -> None:
    assert option("extra-env").parse(text) == pairs


variable_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
new_pair = re.compile(r",[A-Za-z_][A-Za-z0-9_]*=")
values = st.text(alphabet=st.characters(exclude_characters="\0")) | st.text(alphabet="a,=1; B")


@given(st.dictionaries(variable_names, values.filter(lambda text: not new_pair.search(text)), min_size=1))
def test_what_is_joined_by_commas_is_taken_apart_again(pairs: dict[str, str]) -> None:
    joined = ",".join(f"{name}={value}" for name, value in pairs.items())

    assert option("extra-env").parse(joined) == pairs


@given(st.text())
def test_any_text_is_variables_or_an_error(text: str) -> None:
    try:
        pairs = option("extra-env").parse(text)
    except ValueError:
        return
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in pairs)


def test_in_a_variable_a_semicolon_starts_a_new_pair_by_the_same_rule(pytester: pytest.Pytester) -> None:
    environ = {"PYTEST_AORTA_EXTRA_ENV": "A=x;y,z;B=2,C=3;"}

    assert read(pytester, environ=environ).extra_env == {"A": "x;y,z", "B": "2", "C": "3;"}


# mistakes

MISTAKES = [
    ("memory", "8X", "a number of bytes above 0, such as 500M or 1.5G (K, M, G, T count in 1024s)"),
    ("memory", "0", "a number of bytes above 0, such as 500M or 1.5G (K, M, G, T count in 1024s)"),
    ("log-limit", "-1", "a number of bytes above 0, such as 500M or 1.5G (K, M, G, T count in 1024s)"),
    ("stall-timeout", "0", "a number of seconds above 0"),
    ("grace", "-1", "a number of seconds, 0 for none"),
    ("grace", "nan", "a number of seconds, 0 for none"),
    ("trials", "0", "a whole number of at least 1"),
    ("trials", "-1", "a whole number of at least 1"),
    ("trials", "two", "a whole number of at least 1"),
    ("trials", "1.5", "a whole number of at least 1"),
    ("trials", "1_000", "a whole number of at least 1"),
    ("steps", "", "a whole number of at least 1"),
    ("nproc", "0", "a whole number of at least 1"),
    ("timeout", "0", "a number of seconds above 0"),
    ("timeout", "-1", "a number of seconds above 0"),
    ("timeout", "inf", "a number of seconds above 0"),
    ("timeout", "nan", "a number of seconds above 0"),
    ("timeout", "5s", "a number of seconds above 0"),
    ("seed", "-1", "a whole number of at least 0"),
    ("isolation", "forks", "one of fork, spawn, none"),
    ("preload", "torch;numpy", "auto, none, or names of modules separated by commas, such as torch,numpy"),
    ("preload", "auto,torch", "auto, none, or names of modules separated by commas, such as torch,numpy"),
    ("launcher", "mpi", "one of auto, elastic, torchrun, external"),
    ("order", "RANDOM", "one of interleaved, grouped, random"),
    ("workload", " ", "a name"),
    ("mitigations", "a,,b", "names separated by commas"),
    ("mitigations", "", "names separated by commas"),
    ("collect", "a,", "names separated by commas"),
    ("config", "size", "KEY=VALUE"),
    ("config", "=64", "KEY=VALUE"),
    ("results-dir", "", "a name"),
    ("history", "0", "a whole number of at least 1, or all"),
    ("history", "none", "a whole number of at least 1, or all"),
]


@pytest.mark.parametrize(("name", "text", "valid"), MISTAKES)
def test_a_mistake_on_the_command_line_names_value_source_and_what_is_valid(
    pytester: pytest.Pytester, name: str, text: str, valid: str
) -> None:
    with pytest.raises(OptionError) as caught:
        read(pytester, f"--aorta-{name}={text}")

    assert str(caught.value) == f"--aorta-{name}: {text!r} is not valid; expected {valid}"


@pytest.mark.parametrize(("name", "text", "valid"), [mistake for mistake in MISTAKES if mistake[1].strip()])
def test_a_mistake_in_a_variable_or_a_file_says_where(
    pytester: pytest.Pytester, name: str, text: str, valid: str
) -> None:
    each = option(name)
    tail = f": {text!r} is not valid; expected {valid}"

    with pytest.raises(OptionError, match=re.escape(f"the environment variable {each.variable}{tail}")):
        read(pytester, environ={each.variable: text})
    with pytest.raises(OptionError, match=re.escape(f"{each.ini} in {pytester.path / 'tox.ini'}{tail}")):
        read(pytester, ini=f"{each.ini} = {text}")


@pytest.mark.parametrize("text", ["3", "+3", " 3 "])
def test_whole_numbers_may_have_a_sign_and_spaces(pytester: pytest.Pytester, text: str) -> None:
    assert read(pytester, f"--aorta-trials={text}").trials == 3


SECRET = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"1TOKEN={SECRET}",
        f"MY-TOKEN={SECRET}",
        f"={SECRET}",
        f" TOKEN={SECRET}",
        SECRET,
        f"{SECRET},TOKEN",
        f"X,TOKEN={SECRET}",
    ],
)
def test_the_value_of_a_variable_is_never_repeated(pytester: pytest.Pytester, text: str) -> None:
    for arguments, environ in (([f"--aorta-extra-env={text}"], NOBODY), ([], {"PYTEST_AORTA_EXTRA_ENV": text})):
        with pytest.raises(OptionError) as caught:
            read(pytester, *arguments, environ=environ)

        assert SECRET not in str(caught.value)
        assert "extra-env" in str(caught.value).lower().replace("_", "-")
        assert "NAME=VALUE" in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_part_of_a_value_is_no_mistake_and_so_never_repeated(pytester: pytest.Pytester) -> None:
    environ = {"PYTEST_AORTA_EXTRA_ENV": f"TOKEN=a;{SECRET}+==;b"}

    assert read(pytester, environ=environ).extra_env == {"TOKEN": f"a;{SECRET}+==;b"}


@given(st.sampled_from(OPTIONS), st.text())
def test_whatever_is_typed_it_is_a_value_or_a_value_error(each: Option, text: str) -> None:
    parsed: Any = "nothing"
    with contextlib.suppress(ValueError):
        parsed = each.parse(text)

    assert parsed is not None


#: What each option says is valid. A test further up has the same texts, each with a mistake.
VALID = {
    **dict.fromkeys(("trials", "steps", "nproc", "max-trials"), "a whole number of at least 1"),
    **dict.fromkeys(("timeout", "stall-timeout"), "a number of seconds above 0"),
    **dict.fromkeys(
        ("memory", "log-limit"), "a number of bytes above 0, such as 500M or 1.5G (K, M, G, T count in 1024s)"
    ),
    **dict.fromkeys(("workload", "environment", "results-dir", "host", "registry-file", "baseline"), "a name"),
    **dict.fromkeys(("mitigations", "collect", "minimize"), "names separated by commas"),
    "fail-on-nonfinite": "true or false",
    "grace": "a number of seconds, 0 for none",
    "preload": "auto, none, or names of modules separated by commas, such as torch,numpy",
    "slots": "a whole number of at least 1, or auto",
    "own-cores": "true or false",
    "until-decided": "true or false",
    "margin": "a number above 0 and below 1, such as 0.1",
    "report": "the path of a file",
    "duration": "a duration such as 8h, 1h30m, 90s, or a number of seconds above 0",
    "devices": "a list such as 0-3 or 0,2-4, or none",
    "replay": "the path of a trial file, or of a folder with some",
    "resume": "true or false",
    "history": "a whole number of at least 1, or all",
    "seed": "a whole number of at least 0",
    "extra-env": "NAME=VALUE[,NAME=VALUE...], a name being letters, digits and underscores",
    "config": "KEY=VALUE",
    "isolation": "one of fork, spawn, none",
    "launcher": "one of auto, elastic, torchrun, external",
    "order": "one of interleaved, grouped, random",
    "shard": "I/N with I from 1 to N, such as 2/4",
    "durations": "the path of a file",
}

#: How the answers of those begin that add what is wrong.
SAY_WHY = {
    "command": "a program and its arguments, such as ",
    "where": "POINTER OPERATOR VALUE, such as /config/lr<0.1 or /environment==local, with one of ",
    **dict.fromkeys(("fail-on", "pass-on", "metric"), "a regular expression "),
}

#: Texts that are nearly numbers, sizes, lists and pairs, and numbers larger than anything.
odd_texts = (
    st.text()
    | st.text(alphabet=st.characters(codec=None), max_size=6)
    | st.text(alphabet="0123456789.+-_eEinfa KMGTkiB\u212a\u0663\u00b2", max_size=8)
    | st.text(alphabet="Aa_1=,; \0", max_size=8)
    | st.integers(1, 6000).map(lambda count: "9" * count)
    | st.tuples(st.integers(1, 6000), st.sampled_from("KMGT")).map(lambda it: "9" * it[0] + it[1])
)


@given(st.sampled_from(OPTIONS), odd_texts)
@example(option("memory"), "3\u212a")
@example(option("memory"), "9" * 400)
@example(option("memory"), f"{2**63}")
@example(option("log-limit"), "9" * 305 + "T")
@example(option("trials"), "9" * 5000)
@example(option("slots"), "9" * 5000)
def test_what_is_no_value_is_answered_by_what_is_valid(each: Option, text: str) -> None:
    try:
        value = each.parse(text)
    except ValueError as error:
        answer: str | None = str(error)
    else:
        answer = None
        assert value is not None

    if each.name == "elastic":  # each of its keys has an answer of its own
        assert answer is None or answer.startswith(
            ("KEY=VALUE with a KEY of max_restarts, ", f"{text.split('=')[0].strip()}= ")
        )
    elif each.name in SAY_WHY:
        assert answer is None or answer.startswith(SAY_WHY[each.name])
    elif each.name == "gate":  # says where
        assert answer is None or answer.endswith("as in failure_rate<=0.02 or verdict(omp_1)==fixes")
    else:
        assert answer in (None, VALID[each.name])


@given(st.sampled_from(["memory", "log-limit"]), st.integers(1, 2**40), st.sampled_from(["", "K", "m", "GiB", "tb"]))
def test_a_size_is_whole_and_positive_and_what_the_system_can_count(name: str, number: int, unit: str) -> None:
    parse = option(name).parse
    exponent = " KMGT".index((unit or " ")[0].upper())

    if number * 1024**exponent < 2**63:
        assert parse(f"{number}{unit}") == number * 1024**exponent
    else:
        with pytest.raises(ValueError, match="a number of bytes above 0"):
            parse(f"{number}{unit}")


def typed(**given: Any) -> pytest.Config:
    """As much of a configuration as is looked at, with these on the command line."""
    options = SimpleNamespace(**{each.ini: given.get(each.ini) for each in OPTIONS})
    return cast(
        pytest.Config,
        SimpleNamespace(
            option=options,
            getini=lambda name: None,
            inipath=None,
            invocation_params=SimpleNamespace(dir=Path("/")),
        ),
    )


# "auto" counts what this machine has.
@given(st.dictionaries(st.sampled_from(OPTIONS), odd_texts.filter(lambda text: text.strip() != "auto"), max_size=3))
@example({option("registry-file"): "~nobody-of-this-name/registry.json"})
@example({option("registry-file"): "x" * 10_000})
@example({option("registry-file"): "a\0b"})
@example({option("host"): "9" * 5000 + "*popen"})
@example({option("host"): "99999999999*popen"})
@example({option("host"): "//"})
def test_whatever_is_typed_it_is_a_selection_or_an_option_error_that_names_value_and_source(
    given_texts: dict[Option, str],
) -> None:
    config = typed(**{each.ini: [text] if each.repeat else text for each, text in given_texts.items()})
    try:
        selection = read_selection(config, NOBODY)
    except OptionError as error:
        answer = str(error)
    else:
        assert isinstance(selection, Selection)
        return

    (wrong,) = (each for each in given_texts if answer.startswith(f"{each.flag}: "))
    text = given_texts[wrong]
    if wrong.name == "host" and text[:5].isdecimal():
        text = text.partition("*")[0]
    if wrong.name != "extra-env":
        assert text in answer or repr(text) in answer


@given(st.from_regex(r"[a-z0-9]{12}", fullmatch=True), st.sampled_from(["", ","]), st.sampled_from(["", ",A=1", "=="]))
@example("hunter2hunter", "", ",TOKEN=x")
def test_a_secret_that_has_lost_its_name_is_not_repeated(secret: str, before: str, after: str) -> None:
    # A slash as in Base64, so that it cannot be taken for a name.
    text = f"{before}{secret}/{after}"
    with pytest.raises(OptionError) as caught:
        read_selection(typed(aorta_extra_env=[text]), NOBODY)

    assert secret not in str(caught.value)


@pytest.mark.parametrize(
    "host",
    [
        f"popen//env:TOKEN={SECRET}//speed=9",
        f"2*env:TOKEN={SECRET}",
        f"popen//env:A=1//Env:TOKEN={SECRET}",
        f"popen//envTOKEN={SECRET}",
        f"ssh=a//popen//env:A/B={SECRET}/{SECRET}=",
        f"2*popen//id=a//env:TOKEN={SECRET}",
    ],
)
def test_the_value_of_a_host_s_variable_is_not_repeated_either(host: str) -> None:
    with pytest.raises(OptionError, match="--aorta-host: ") as caught:
        read_selection(typed(aorta_host=[host]), NOBODY)

    assert SECRET not in str(caught.value)
    assert "..." in str(caught.value)


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("popen", "popen"),
        ("ssh=me@gpu7 -p 22//python=/opt/py", "ssh=me@gpu7 -p 22//python=/opt/py"),
        ("2*popen//env:A=b*c//env:B=", "2*popen//env:A=...//env:B="),
    ],
)
def test_of_a_host_all_but_the_values_of_its_variables_can_be_shown(host: str, shown: str) -> None:
    assert without_values(host) == shown


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("8h", 28800), ("1h30m", 5400), ("1d2h3m4.5s", 93784.5), ("90", 90), (" 0.5h ", 1800)],
)
def test_a_duration_is_typed_as_people_write_it(text: str, seconds: float) -> None:
    assert option("duration").parse(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "8x", "h", "1m1h", "-1h", "1.2.3h", "8 hours", "inf", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration such as 8h, 1h30m, 90s"):
        option("duration").parse(text)


def test_what_ends_a_run_decides_how_many_trials_there_are_at_most(pytester: pytest.Pytester) -> None:
    assert read(pytester, "--aorta-until-decided").trials == 200
    assert read(pytester, "--aorta-minimize", "a").trials == 200
    assert read(pytester, "--aorta-duration", "1h").trials == 10_000
    cells = [word for number in range(40) for word in ("--aorta-mitigations", f"m{number}")]
    assert read(pytester, "--aorta-duration", "1h", *cells).trials == 250
    assert read(pytester, "--aorta-duration", "1h", *cells, *cells, *cells).trials == 100
    assert read(pytester, "--aorta-duration", "1h", "--aorta-trials", "3").trials == 3


def test_a_run_that_may_end_early_is_judged_sequentially(pytester: pytest.Pytester) -> None:
    assert not read(pytester, "--aorta-trials", "3").triage.sequential
    for arguments in (["--aorta-until-decided"], ["--aorta-duration", "8h"], ["--aorta-minimize", "a"]):
        assert read(pytester, *arguments).triage.sequential


def test_a_search_has_two_cells(pytester: pytest.Pytester) -> None:
    found = read(pytester, "--aorta-minimize", "a,b", "--aorta-mitigations", "c", "--aorta-max-trials", "50")
    assert found.mitigations == (("c",), ("a", "b"))
    assert (found.triage.baseline, found.max_trials) == ("c", 50)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--aorta-duration", "1h", "--aorta-order", "random"], "--aorta-order random and --aorta-duration: whole"),
        (["--aorta-minimize", "a", "--aorta-until-decided"], "--aorta-minimize and --aorta-until-decided: use one"),
        (
            ["--aorta-minimize", "a", "--aorta-mitigations", "b", "--aorta-mitigations", "c"],
            "--aorta-mitigations b and c: with --aorta-minimize, expected one other mitigation set",
        ),
    ],
)
def test_what_cannot_be_combined_is_refused(pytester: pytest.Pytester, arguments: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read(pytester, *arguments)
