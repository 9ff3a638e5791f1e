"""The snapshot as data: frozen, strict JSON, readable by older and newer versions."""

from __future__ import annotations

import importlib.util
import json
import re
from datetime import datetime, timedelta
from pathlib import Path

import pydantic
import pytest

from pytest_aorta.probe.collect import collect_env, collect_static
from pytest_aorta.probe.guard import plain
from pytest_aorta.probe.snapshot import EndSnapshot, EnvSnapshot


def test_a_snapshot_survives_json_without_loss() -> None:
    snapshot = collect_env(collect_static())
    text = json.dumps(snapshot.to_dict(), allow_nan=False, ensure_ascii=False).encode("utf-8")
    assert EnvSnapshot.from_dict(json.loads(text)) == snapshot


def test_a_collected_snapshot_is_a_valid_one() -> None:
    """It is built without validation, for speed."""
    snapshot = collect_env(collect_static())
    assert EnvSnapshot.model_validate(snapshot.model_dump(), strict=True) == snapshot
    assert set(snapshot.to_dict()) == set(EnvSnapshot.model_fields)


def test_the_moment_is_in_utc() -> None:
    assert datetime.fromisoformat(collect_env().captured_at).utcoffset() == timedelta(0)


def test_a_snapshot_cannot_be_changed() -> None:
    snapshot = EnvSnapshot.unavailable("x")
    with pytest.raises(pydantic.ValidationError):
        snapshot.partial = False


def test_the_dictionary_shares_nothing_with_the_snapshot() -> None:
    snapshot = EnvSnapshot(captured_at="2026-01-01T00:00:00+00:00", host={"os_release": {"id": "debian"}})
    snapshot.to_dict()["host"]["os_release"]["id"] = "changed"
    assert snapshot.host == {"os_release": {"id": "debian"}}


def test_a_newer_minor_version_is_read_without_what_is_unknown() -> None:
    data = {**EnvSnapshot.unavailable("x").to_dict(), "schema_version": "1.7", "weather": "fine"}
    snapshot = EnvSnapshot.from_dict(data)
    assert snapshot.schema_version == "1.7"
    assert "weather" not in snapshot.to_dict()


def test_a_file_that_lacks_sections_is_read() -> None:
    data = {"schema_version": "1.0", "captured_at": "2026-01-01T00:00:00+00:00", "env_vars": {"RANK": "0"}}
    snapshot = EnvSnapshot.from_dict(data)
    assert (snapshot.host, snapshot.git, snapshot.env_vars) == ({}, None, {"RANK": "0"})


def test_another_major_version_is_refused_by_name() -> None:
    with pytest.raises(pydantic.ValidationError, match=r"schema_version of an environment is '2\.0'.*reads 1\.x"):
        EnvSnapshot.from_dict({**EnvSnapshot.unavailable("x").to_dict(), "schema_version": "2.0"})


def test_an_unavailable_snapshot_says_why() -> None:
    snapshot = EnvSnapshot.unavailable("the zygote could not start")
    assert (snapshot.partial, snapshot.partial_reasons) == (True, ["the zygote could not start"])
    assert EnvSnapshot.from_dict(snapshot.to_dict()) == snapshot


def test_what_json_cannot_hold_is_made_plain() -> None:
    class Text(str):
        __slots__ = ()

    found = plain(
        {1: (Text("a"), {2, 1}), "nan": float("nan"), "inf": float("-inf"), "other": ValueError("x"), "no": None}
    )
    assert found == {"1": ["a", [1, 2]], "nan": "NaN", "inf": "-Infinity", "other": "x", "no": None}
    assert type(found["1"][0]) is str


DOCS = (Path(__file__).parents[2] / "docs" / "probe.md").read_text()


def test_the_comparison_has_every_field_of_the_probe_of_torch() -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).with_name("utils").joinpath("collect_env.py").read_text()
    fields = re.search(r'"SystemEnv",\s*\[(.*?)\]', source, re.DOTALL)
    assert fields is not None
    assert [name for name in re.findall(r'"(\w+)"', fields[1]) if f"`{name}`" not in DOCS] == []


def test_the_comparison_has_every_field_of_a_snapshot() -> None:
    named = set(re.findall(r"[a-z_]\w+", " ".join(re.findall(r"`([^`]+)`", DOCS))))
    static = collect_static()
    fields = {*EnvSnapshot.model_fields, *EndSnapshot.model_fields, *static.sections["host"]} - {"hostname"}
    assert fields - named == set()
