"""The record of a trial: its way to JSON and back, and its published schema."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import MISSING, fields, replace
from importlib.resources import files
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import jsonschema
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.records import record

from pytest_aorta.trials.records import FailureKind
from pytest_aorta.trials.result import TrialResult, schema_text

PUBLISHED = files("pytest_aorta") / "schemas" / "trial_result.schema.json"
SCHEMA = json.loads(PUBLISHED.read_text())

unicode = st.text(max_size=8) | st.sampled_from(["NaN", "\\NaN", "Infinity", "-Infinity"])
# Bytes that are not UTF-8 reach Python like this. (JSON has one text for a character and the two halves of it.)
text = unicode | st.binary(max_size=8).map(os.fsdecode)
free = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    # Only in keys are lone surrogates escaped before there is a record.
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(unicode, inner, max_size=3),
    max_leaves=5,
)
durations = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    **{str: text, bool: st.booleans(), int: st.integers(), float: durations, Any: free, type(None): st.none()}
}


def drawn(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type; of a dataclass or a model, with each field at its default or drawn."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return drawn(inner[0])
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, UnionType):
        return st.one_of(*map(drawn, inner))
    if origin is list:
        return st.lists(drawn(inner[0]), max_size=2)
    if origin is tuple and inner[-1] is not Ellipsis:
        return st.tuples(*map(drawn, inner))
    if origin is tuple:
        return st.lists(drawn(inner[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(unicode, drawn(inner[1]), max_size=2)
    return PLAIN[hint] if hint in PLAIN else st.deferred(lambda: fields_of(hint).map(lambda given: hint(**given)))


def fields_of(cls: Any) -> st.SearchStrategy[dict[str, Any]]:
    hints = get_type_hints(cls, include_extras=True)
    if issubclass(cls, pydantic.BaseModel):
        needed = [name for name, field in cls.model_fields.items() if field.is_required()]
        hints = {name: hints[name] for name in cls.model_fields}
    else:
        needed = [field.name for field in fields(cls) if field.default is field.default_factory is MISSING]
    strategies = {name: drawn(hint) for name, hint in hints.items()}
    optional = {name: strategy for name, strategy in strategies.items() if name not in needed}
    return st.fixed_dictionaries({name: strategies[name] for name in needed}, optional=optional)


def agreeing(given: dict[str, Any]) -> TrialResult:
    """A record in which the result and the failure are such that they can have this status."""
    status, failure = given["exit_status"], given.get("failure")
    if failure is not None:
        late = status == "timeout" or (status == "ok" and failure.is_late)
        kind: FailureKind = "stall" if late else "signal" if failure.is_late else failure.kind
        given["failure"] = replace(failure, phase="cleanup" if status == "ok" else failure.phase, kind=kind)
    given["result"] = replace(given["result"], passed=status == "ok")
    return TrialResult(**given)


def exact(value: object) -> object:
    """A form in which a NaN equals a NaN, and 1, 1.0 and True are three values."""
    if isinstance(value, dict):
        return {key: exact(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [exact(inner) for inner in value]
    return type(value), value.hex() if isinstance(value, float) else value


@settings(max_examples=50)
@given(fields_of(TrialResult).map(agreeing))
def test_a_record_fits_the_published_schema_and_comes_back_from_strict_json_without_loss(made: TrialResult) -> None:
    data = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    jsonschema.Draft202012Validator(SCHEMA).validate(data)

    again = TrialResult.from_dict(data)

    assert exact(again.model_dump()) == exact(made.model_dump())
    assert exact(again.to_dict()) == exact(made.to_dict())


def test_the_published_schema_is_that_of_the_code() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "pytest_aorta.trials.result"], capture_output=True, text=True, check=True
    ).stdout

    assert printed == schema_text()
    assert PUBLISHED.read_text() == printed, (
        "publish it again: python -m pytest_aorta.trials.result > pytest_aorta/schemas/trial_result.schema.json"
    )


def test_keys_of_a_later_schema_are_ignored() -> None:
    data = TrialResult.from_dict(record()).to_dict()
    data["verdict"] = "innocent"
    data["result"]["later"] = {"deep": 1}
    data["execution_env"]["conda"] = "base"

    assert TrialResult.from_dict(data) == TrialResult.from_dict(record())


def test_a_missing_field_is_named() -> None:
    cases: list[tuple[tuple[str, ...], str]] = [
        (("trial_id",), "trial_id"),
        (("exit_status",), "exit_status"),
        (("result",), "result"),
        (("result", "passed"), "result.passed"),
        (("execution_env", "kind"), "execution_env.kind"),
    ]
    for path, named in cases:
        data = record()
        holder = data
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]

        with pytest.raises(pydantic.ValidationError) as caught:
            TrialResult.from_dict(data)

        assert [".".join(map(str, error["loc"])) for error in caught.value.errors()] == [named]
        assert named in str(caught.value)
