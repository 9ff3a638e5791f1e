"""A workload's options: what was typed becomes what its constructor receives."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from pytest_aorta.trials.loading import ConfigError, resolve_config
from pytest_aorta.trials.records import encode_non_finite


class Typed:
    class Config(BaseModel):
        steps: int = 10
        lr: float = 0.1
        dtype: Literal["float32", "bfloat16"] = "float32"
        compile: bool = False
        sizes: list[int] = [64]
        name: str = "x"
        limit: int | None = None
        out: Path = Path("/tmp")
        schedule: dict[str, float] = {}


class Untyped:
    """As most classes are that know nothing of this package."""

    default_config = {"steps": 100, "dtype": "float32"}


class Bare: ...


def test_a_text_is_read_as_the_type_of_the_option() -> None:
    cases: list[tuple[str, str, object]] = [
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
    ]
    for option, text, value in cases:
        config = resolve_config(Typed, {option: text}, None)

        assert getattr(config.value, option) == value
        assert type(getattr(config.value, option)) is type(value)


def test_a_value_that_does_not_fit_is_named_with_what_would_be_valid() -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"lr": "fast"}, r"Typed: lr='fast': .*valid number"),
        ({"dtype": "int4"}, r"Typed: dtype='int4': .*'float32' or 'bfloat16'"),
        ({"sizes": '[1, "a"]'}, r"Typed: sizes=.*: .*valid list"),
        ({"lr": "x", "compile": "maybe"}, r"Typed: lr='x': .*; compile='maybe': "),
        (
            {"stepz": "3"},
            r"^Typed has no option 'stepz'; valid: compile, dtype, limit, lr, name, out, schedule, sizes, s",
        ),
    ]
    for overrides, message in cases:
        with pytest.raises(ConfigError, match=message):
            resolve_config(Typed, overrides, None)


def test_a_class_without_a_model_has_its_defaults_overlaid() -> None:
    config = resolve_config(Untyped, {"dtype": "bfloat16", "new": "1"}, 7)

    assert config.value == config.plain == {"steps": 7, "dtype": "bfloat16", "new": 1}
    assert Untyped.default_config == {"steps": 100, "dtype": "float32"}
    unknown = "Untyped.default_config has no option 'new' (known: dtype, steps); it may have no effect"
    assert config.warnings == (unknown,)


def test_without_a_model_a_text_is_json_where_it_can_be() -> None:
    cases: list[tuple[str, object]] = [
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
    ]
    for text, value in cases:
        resolved = resolve_config(Bare, {"option": text}, None).value["option"]

        assert resolved == value
        assert type(resolved) is type(value)


class WithWhatPydanticCannotWrite:
    class Config(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)

        dtype: torch.dtype = torch.float32
        salt: bytes = b"\xff"
        steps: int = 3


def test_a_value_that_no_file_can_hold_reaches_the_workload_and_is_recorded_as_text() -> None:
    thing: Any = object()
    bare = resolve_config(Bare, {"thing": thing}, None)
    assert bare.value["thing"] is thing
    assert bare.plain["thing"] == repr(thing)

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
