"""Conditions on trials as they are typed."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_aorta.common.conditions import parse_condition, selected
from pytest_aorta.settings import RequestError

TRIALS = [
    {"environment": environment, "mitigations": ["none"], "config": {"lr": lr, "a/b": {"c~d": 1}}, "trial": trial}
    for environment, lr in (("local", 0.05), ("rocm7", 0.2))
    for trial in range(2)
]


def chosen(*texts: str, trials: list[Any] = TRIALS) -> list[int]:
    """The numbers of the trials that meet all conditions."""
    return selected(range(len(trials)), trials.__getitem__, [parse_condition(text) for text in texts], "--where")


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["/config/lr<0.1"], [0, 1]),
        (["/config/lr >= 2e-1"], [2, 3]),
        (["/environment==local"], [0, 1]),
        (['/environment=="local"'], [0, 1]),
        (["/environment>local"], [2, 3]),
        (['/mitigations==["none"]'], [0, 1, 2, 3]),
        (["/trial<=0", "/config/lr>0.1"], [2]),
        (["/config/a~1b/c~0d==1", "/trial==1"], [1, 3]),
        (["/trial>7"], []),
        (["/trial>7", "/config/lr<1"], []),
    ],
    ids=str,
)
def test_operators(texts: list[str], numbers: list[int]) -> None:
    assert chosen(*texts) == numbers


@pytest.mark.parametrize(
    "text", ["", "lr<1", "/config/lr", "/config/lr=1", "/config/lr!=1", "/config/lr<", "/a~2<1", "<1"]
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"such as /config/lr<0.1 or /environment==local, with one of <, <=, ==, >=, >"
    ):
        parse_condition(text)


def test_an_unknown_pointer_is_one_message_with_those_that_there_are() -> None:
    with pytest.raises(RequestError) as caught:
        chosen("/config/rl<0.1")
    assert str(caught.value) == (
        "--where '/config/rl<0.1': no trial or directory has /config/rl; there are /environment, /mitigations, "
        "/config, /config/lr, /config/a~1b, /config/a~1b/c~0d, /trial"
    )


def test_what_cannot_be_compared_is_one_message() -> None:
    with pytest.raises(RequestError) as caught:
        chosen("/config/lr<fast")
    assert str(caught.value) == (
        "--where '/config/lr<fast': /config/lr is 0.05 there, which cannot be compared with \"fast\""
    )


def test_trials_without_the_element_are_not_selected_where_others_have_it() -> None:
    trials = [{"config": {}}, {"config": {"lr": 0.01}}, {"config": {"lr": "auto"}}, None]
    assert chosen("/config/lr<0.1", trials=trials) == [1]
