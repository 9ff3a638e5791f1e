"""A workload's options: what was typed becomes what its constructor receives."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optional_workloads import Bare, Typed, Untyped, WithoutSteps
from pydantic import BaseModel, ConfigDict

from pytest_aorta.trials.loading import ConfigError, resolve_config
from pytest_aorta.trials.records import encode_non_finite


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("lr", "1e-3", 0.001),
        ("dtype", "bfloat16", "bfloat16"),
        ("compile", "true", True),
        ("compile", "0", False),
        ("sizes", "[64, 128]", [64, 128]),
        ("name", "123", "123"),
        ("name", "[1]", "[1]"),
        ("name", "", ""),
        ("limit", "7", 7),
        ("limit", "null", None),
        ("limit", "none", None),
        ("out", "/data", Path("/data")),
        ("schedule", '{"warmup": 0.5}', {"warmup": 0.5}),
    ],
)
def test_a_text_is_read_as_the_type_of_the_option(option: str, text: str, value: object) -> None:
    config = resolve_config(Typed, {option: text}, None)

    assert getattr(config.value, option) == value
    assert type(getattr(config.value, option)) is type(value)


def test_an_unknown_option_lists_the_valid_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_config(Typed, {"stepz": "3"}, None)

    assert str(caught.value) == (
        "Typed has no option 'stepz'; valid: compile, dtype, limit, lr, name, out, schedule, sizes, steps"
    )


def test_steps_for_a_workload_without_such_an_option_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^WithoutSteps has no option 'steps'; valid: size$"):
        resolve_config(WithoutSteps, {}, 3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"lr": "fast"}, r"Typed: lr='fast': .*valid number"),
        ({"dtype": "int4"}, r"Typed: dtype='int4': .*'float32' or 'bfloat16'"),
        ({"sizes": '[1, "a"]'}, r"Typed: sizes=.*: .*valid list"),
        ({"lr": "x", "compile": "maybe"}, r"Typed: lr='x': .*; compile='maybe': "),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_what_would_be_valid(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_config(Typed, overrides, None)


def test_a_class_without_a_model_has_its_defaults_overlaid() -> None:
    config = resolve_config(Untyped, {"dtype": "bfloat16", "new": "1"}, 7)

    assert config.value == config.plain == {"steps": 7, "dtype": "bfloat16", "new": 1}
    assert Untyped.default_config == {"steps": 100, "dtype": "float32"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 0.001),
        ("true", True),
        ("True", True),
        ("False", False),
        ("None", None),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ('{"a": 1}', {"a": 1}),
        ('"3"', "3"),
        ("float32", "float32"),
        ("0x10", "0x10"),
        ("", ""),
        ("[1", "[1"),
    ],
)
def test_without_a_model_a_text_is_json_where_it_can_be(text: str, value: object) -> None:
    resolved = resolve_config(Bare, {"option": text}, None).value["option"]

    assert resolved == value
    assert type(resolved) is type(value)


def test_a_value_that_no_file_can_hold_reaches_the_workload_and_is_recorded_as_text() -> None:
    thing: Any = object()

    config = resolve_config(Bare, {"thing": thing}, None)

    assert config.value["thing"] is thing
    assert config.plain["thing"] == repr(thing)


class WithWhatPydanticCannotWrite:
    class Config(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)

        dtype: torch.dtype = torch.float32
        salt: bytes = b"\xff"
        steps: int = 3


def test_an_option_that_pydantic_cannot_write_is_recorded_as_text() -> None:
    config = resolve_config(WithWhatPydanticCannotWrite, {"steps": "5"}, None)

    assert config.value.dtype is torch.float32
    assert config.plain == {"dtype": "torch.float32", "salt": "\\xff", "steps": 5}


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000], ids=["list", "object", "number"])
def test_what_no_reader_of_json_can_take_stays_a_text(text: str) -> None:
    assert resolve_config(Bare, {"option": text}, None).value == {"option": text}
    with pytest.raises(ConfigError, match="sizes="):
        resolve_config(Typed, {"sizes": text}, None)


@given(
    st.dictionaries(
        st.sampled_from(["lr", "dtype", "compile", "sizes", "name", "limit", "out", "schedule", "steps"]),
        st.text(alphabet=st.characters(codec=None)) | st.text(alphabet='[]{}",:0123456789.-eE naif'),
        max_size=3,
    )
)
def test_whatever_is_typed_it_is_a_configuration_or_an_error_of_one(overrides: dict[str, str]) -> None:
    for cls in (Typed, Bare):
        with contextlib.suppress(ConfigError):
            json.dumps(encode_non_finite(resolve_config(cls, overrides, None).plain), allow_nan=False)


def test_an_option_that_the_defaults_do_not_have_is_kept_and_named_with_the_nearest_one() -> None:
    config = resolve_config(Untyped, {"dtyp": "bfloat16", "x": 1}, 7)

    assert config.plain == {"steps": 7, "dtype": "float32", "dtyp": "bfloat16", "x": 1}
    assert config.warnings == (
        "Untyped.default_config has no option 'dtyp' (did you mean 'dtype'?); it may have no effect",
        "Untyped.default_config has no option 'x' (known: dtype, steps); it may have no effect",
    )


@pytest.mark.parametrize("cls", [Bare, Untyped, Typed])
def test_what_the_runner_adds_cannot_be_given(cls: type[Any]) -> None:
    with pytest.raises(ConfigError, match=r"the option '_aorta_trial_env' cannot be given"):
        resolve_config(cls, {"_aorta_trial_env": {}}, None)


def test_defaults_that_are_no_dict_are_refused() -> None:
    class Method:
        @classmethod
        def default_config(cls) -> dict[str, int]:
            return {"steps": 20}

    with pytest.raises(ConfigError, match=r"Method\.default_config has to be a dict, and is a method"):
        resolve_config(Method, {}, None)
