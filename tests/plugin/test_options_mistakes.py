"""What is said about values that options do not take."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from option_reading import NO_VARIABLES, on_command_line, option, read, typed

from pytest_aorta.plan import Selection
from pytest_aorta.plugin.options import read_selection
from pytest_aorta.settings import SETTINGS, OptionError, Setting, shown_command

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
        read(pytester, *on_command_line(option(name), text))

    source = option(name).flag if option(name).scope == "option" else f"-o {option(name).ini}"
    assert str(caught.value) == f"{source}: {text!r} is not valid; expected {valid}"


@pytest.mark.parametrize(("name", "text", "valid"), [mistake for mistake in MISTAKES if mistake[1].strip()][::5])
def test_a_mistake_in_a_variable_or_a_file_says_where(
    pytester: pytest.Pytester, name: str, text: str, valid: str
) -> None:
    each = option(name)
    tail = f": {text!r} is not valid; expected {valid}"

    with pytest.raises(OptionError, match=re.escape(f"the environment variable {each.variable}{tail}")):
        read(pytester, environ={each.variable: text})
    with pytest.raises(OptionError, match=re.escape(f"{each.ini} in {pytester.path / 'tox.ini'}{tail}")):
        read(pytester, ini=f"{each.ini} = {text}")


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
    "slots": "a whole number of at least 1, or auto; with cores of their own: 4,own-cores, or own-cores",
    "margin": "a number above 0 and below 1, such as 0.1",
    "report": "the path of a file",
    "stop": "decided, a duration such as 8h, 1h30m, 90s, or both: decided,8h",
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
    "shard": "I/N with I from 1 to N, such as 2/4, or 2/4:FILE with a file of durations",
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


@given(st.sampled_from(SETTINGS), odd_texts)
@example(option("memory"), "3\u212a")
@example(option("memory"), "9" * 400)
@example(option("memory"), f"{2**63}")
@example(option("log-limit"), "9" * 305 + "T")
@example(option("trials"), "9" * 5000)
@example(option("slots"), "9" * 5000)
def test_what_is_no_value_is_answered_by_what_is_valid(each: Setting, text: str) -> None:
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


# "auto" counts what this machine has.
@given(st.dictionaries(st.sampled_from(SETTINGS), odd_texts.filter(lambda text: text.strip() != "auto"), max_size=3))
@example({option("registry-file"): "~nobody-of-this-name/registry.json"})
@example({option("registry-file"): "x" * 10_000})
@example({option("registry-file"): "a\0b"})
@example({option("host"): "9" * 5000 + "*popen"})
@example({option("host"): "99999999999*popen"})
@example({option("host"): "//"})
@example({option("command"): "A=0"})
def test_whatever_is_typed_it_is_a_selection_or_an_option_error_that_names_value_and_source(
    given_texts: dict[Setting, str],
) -> None:
    config = typed(**{each.ini: [text] if each.repeat else text for each, text in given_texts.items()})
    try:
        selection = read_selection(config, NO_VARIABLES)
    except OptionError as error:
        answer = str(error)
    else:
        assert isinstance(selection, Selection)
        return

    (wrong,) = (each for each in given_texts if answer.startswith(f"{each.flag}: "))
    text = given_texts[wrong]
    if wrong.name == "host" and text[:5].isdecimal():
        text = text.partition("*")[0]
    if wrong.name == "command":  # whose variables may have secrets
        assert shown_command(text) in answer
    elif wrong.name != "extra-env":
        assert text in answer or repr(text) in answer


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("8h", 28800), ("1h30m", 5400), ("1d2h3m4.5s", 93784.5), ("90", 90), (" 0.5h ", 1800)],
)
def test_a_duration_is_typed_as_people_write_it(text: str, seconds: float) -> None:
    assert option("stop").parse(text) == (False, seconds)
    assert option("stop").parse(f"{text}, decided") == (True, seconds)


@pytest.mark.parametrize(
    "text", ["", "0", "8x", "h", "1m1h", "-1h", "1.2.3h", "8 hours", "inf", "nan", "1h,2h", "decided,decided"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration such as 8h, 1h30m, 90s"):
        option("stop").parse(text)
