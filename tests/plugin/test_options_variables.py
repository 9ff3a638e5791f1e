"""The comma rule of ``--aorta-extra-env``, and that values of variables are never repeated."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from option_reading import NO_VARIABLES, option, read, typed

from pytest_aorta.plugin.options import read_selection
from pytest_aorta.runtime.host_specs import without_values
from pytest_aorta.settings import OptionError

SECRET = "hunter2"


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


def test_in_a_variable_a_semicolon_starts_a_new_pair_by_the_same_rule(pytester: pytest.Pytester) -> None:
    environ = {"PYTEST_AORTA_EXTRA_ENV": "A=x;y,z;B=2,C=3;"}

    assert read(pytester, environ=environ).extra_env == {"A": "x;y,z", "B": "2", "C": "3;"}


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
    for arguments, environ in (([f"--aorta-extra-env={text}"], NO_VARIABLES), ([], {"PYTEST_AORTA_EXTRA_ENV": text})):
        with pytest.raises(OptionError) as caught:
            read(pytester, *arguments, environ=environ)

        assert SECRET not in str(caught.value)
        assert "extra-env" in str(caught.value).lower().replace("_", "-")
        assert "NAME=VALUE" in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_part_of_a_value_is_no_mistake_and_so_never_repeated(pytester: pytest.Pytester) -> None:
    environ = {"PYTEST_AORTA_EXTRA_ENV": f"TOKEN=a;{SECRET}+==;b"}

    assert read(pytester, environ=environ).extra_env == {"TOKEN": f"a;{SECRET}+==;b"}


@given(st.from_regex(r"[a-z0-9]{12}", fullmatch=True), st.sampled_from(["", ","]), st.sampled_from(["", ",A=1", "=="]))
@example("hunter2hunter", "", ",TOKEN=x")
def test_a_secret_that_has_lost_its_name_is_not_repeated(secret: str, before: str, after: str) -> None:
    # A slash as in Base64, so that it cannot be taken for a name.
    text = f"{before}{secret}/{after}"
    with pytest.raises(OptionError) as caught:
        read_selection(typed(aorta_extra_env=[text]), NO_VARIABLES)

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
        read_selection(typed(aorta_host=[host]), NO_VARIABLES)

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
