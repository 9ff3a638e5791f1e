"""Registry files in JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.registry import Environment, Mitigation, Registry, RegistryCollisionError, RegistryError


def write(path: Path, **content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def test_a_sidecar_adds_mitigations_and_environments(tmp_path: Path) -> None:
    path = write(
        tmp_path / "lab.json",
        version=1,
        mitigations={"lab": {"LAB_MODE": "1", "LAB_EMPTY": ""}},
        environments={"lab-image": {"docker": "lab/image:1", "launcher": ["numactl", "-N", "0"], "env": {"A": "1"}}},
    )

    registry, source = Registry.load([path]), "sidecar:lab.json"

    assert registry.mitigation("lab") == Mitigation("lab", {"LAB_MODE": "1", "LAB_EMPTY": ""}, source)
    launcher = ("numactl", "-N", "0")
    image = Environment("lab-image", docker="lab/image:1", launcher=launcher, env={"A": "1"}, source_package=source)
    assert registry.environment("lab-image") == image


def test_a_relative_venv_is_relative_to_the_file_and_not_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "conf" / "lab.json", version=1, environments={"x": {"venv": "venvs/x"}})
    monkeypatch.chdir(tmp_path)

    environment = Registry.load([Path("conf/lab.json")]).environment("x")

    assert environment.venv == str(tmp_path / "conf" / "venvs" / "x")
    assert environment.kind == "venv"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({}, "the key 'version' is missing"),
        ({"version": 2}, "version 2 is not known"),
        ({"version": "1"}, "version '1' is not known"),
        ({"version": True}, "version True is not known"),
        ({"version": 1, "mitigation": {}}, "unknown key 'mitigation'; valid keys: version, mitigations, environments"),
        ({"version": 1, "mitigations": []}, "mitigations: must be an object of names, not list"),
        ({"version": 1, "mitigations": {"x": {"A": 1234567}}}, r"mitigations\.x\.A: the value must be a string"),
        ({"version": 1, "environments": {"x": "image"}}, r"environments\.x: must be a mapping of fields, not str"),
    ],
)
def test_content_that_cannot_be_used_is_refused_with_the_file_and_the_place(
    tmp_path: Path, content: dict[str, Any], reason: str
) -> None:
    path = write(tmp_path / "lab.json", **content)

    with pytest.raises(RegistryError, match=reason) as caught:
        Registry.load([path])
    assert str(path) in str(caught.value)
    assert "1234567" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", r"lab\.json:1:1: not valid JSON"),
        (b'{\n  "version": 1,\n  "mitigations": {"x": {"TOKEN": "hunter2",}}\n}\n', r"lab\.json:3:\d+: not valid JSON"),
        (b"[1]", r"lab\.json: must hold a JSON object, not list"),
        (b'{"version": 1,\n"mitigations": {"\xff": {}}}', r"lab\.json:2: not UTF-8"),
        (b"[" * 200_000, r"lab\.json: .*nested too deeply"),
    ],
)
def test_a_file_that_holds_no_json_object_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "lab.json"
    path.write_bytes(data)

    with pytest.raises(RegistryError, match=reason) as caught:
        Registry.load([path])
    assert "hunter2" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"cannot read the registry file .*: Is a dir"):
        Registry.load([tmp_path])


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 1, "mitigations": {"x": {"A": "1"}, "x": {"A": "2"}}}',
        '{"version": 1, "mitigations": {"x": {"A": "1", "A": "2"}}}',
        '{"version": 1, "mitigations": {}, "mitigations": {"x": {}}}',
    ],
)
def test_a_key_that_is_there_twice_has_no_winner(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lab.json"
    path.write_text(text)

    with pytest.raises(RegistryCollisionError, match=r"lab\.json: the key '\w+' is there twice"):
        Registry.load([path])


def test_two_sidecars_offer_a_name_twice_only_if_it_is_the_same(tmp_path: Path) -> None:
    same = {"m": {"A": "1"}, "xnack": {"HSA_XNACK": "1"}}
    paths = [
        write(tmp_path / f"{it}.json", version=1, mitigations=same, environments={it: {}}) for it in ("one", "two")
    ]
    registry = Registry.load(paths)
    assert registry.mitigation("m").source_package == "sidecar:one.json"
    assert registry.mitigation("xnack").source_package == "pytest-aorta"

    other = write(tmp_path / "other.json", version=1, environments={"two": {"rocm": "7"}})
    with pytest.raises(RegistryCollisionError, match=r"environment name 'two'.*two\.json.*other\.json"):
        Registry.load([*paths, other])
    with pytest.raises(RegistryCollisionError, match=r"two registry files are called 'one\.json': .*folder.*one"):
        Registry.load([write(tmp_path / "folder" / "one.json", version=1), paths[0]])
    with pytest.raises(RegistryCollisionError):
        Registry.load([paths[0], paths[0]])


def test_an_environment_may_ask_to_be_entered(tmp_path: Path) -> None:
    environments = {
        "first": {"docker": "lab/x", "enter": True},
        "chosen": {"docker": "lab/x", "enter": "podman", "engine_options": "--shm-size=8g -v '/a b:/a b'"},
        "label": {"docker": "lab/x", "enter": False},
    }
    path = write(tmp_path / "lab.json", version=1, environments=environments)

    first, chosen, label = (Registry.load([path]).environment(name) for name in environments)

    assert (first.enter, first.engine_options) == (True, ())
    assert (chosen.enter, chosen.engine_options) == ("podman", ("--shm-size=8g", "-v", "/a b:/a b"))
    assert label.enter is False


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"enter": True}, r"x\.enter: there is nothing to enter; name an image in the field 'docker'"),
        ({"docker": "i", "enter": "dokcer"}, r"x\.enter: must be true, false or one of docker, .*, not 'dokcer'"),
        ({"docker": "i", "enter": 1}, r"x\.enter: must be true, false or one of .*, not int"),
        ({"docker": "i", "engine_options": ["-v"]}, r'x\.engine_options: no engine is started; add "enter": true'),
    ],
)
def test_what_cannot_be_entered_is_refused(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(RegistryError, match=reason):
        Registry.load([write(tmp_path / "lab.json", version=1, environments={"x": fields})])
