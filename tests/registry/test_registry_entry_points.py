"""Names that installed distributions offer."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import TYPE_CHECKING

import pytest
from support.fake_distributions import install, use_site, write_distribution

from pytest_aorta.registry import (
    Environment,
    Registry,
    RegistryCollisionError,
    RegistryError,
    UnknownMitigationError,
    WorkloadEntry,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Installs a distribution: its name, entry points and modules."""
    return functools.partial(install, monkeypatch, tmp_path)


def test_a_workload_and_a_collector_are_found_without_importing_their_module(offer: Callable[..., None]) -> None:
    offer(
        "acme-workloads",
        {
            "aorta.workloads": {"acme": "acme_workload:Acme [gpu]"},
            "aorta.collectors": {"acme_trace": "acme_workload:Trace"},
        },
        {"acme_workload": "raise RuntimeError('imported')"},
    )

    entry = Registry.load().workload("acme")

    assert entry == WorkloadEntry("acme", "acme_workload:Acme", "acme-workloads")
    assert Registry.load().collector("acme_trace") == "acme_workload:Trace"
    assert "acme_workload" not in sys.modules
    assert "acme" in Registry.load().names("workloads")


@pytest.mark.parametrize("value", ["acme_workload", "acme-workload:Acme", "acme_workload:"])
def test_a_workload_entry_that_names_no_class_is_refused_when_asked_for(offer: Callable[..., None], value: str) -> None:
    offer("acme-workloads", {"aorta.workloads": {"acme": value}})
    registry = Registry.load()

    with pytest.raises(RegistryError, match=r"'acme'.*'acme-workloads'.*module:attribute"):
        registry.workload("acme")
    assert any("'acme'" in line for line in registry.problems())


def test_a_plugin_is_imported_only_when_its_own_mitigation_is_asked_for(offer: Callable[..., None]) -> None:
    for name in ("one", "two"):
        offer(
            f"acme-{name}",
            {"aorta.mitigations": {name: f"acme_{name}:ENV"}},
            {f"acme_{name}": f"ENV = {{'ACME': '{name}'}}"},
        )

    registry = Registry.load()
    assert {"one", "two"} <= set(registry.names("mitigations"))
    registry.mitigation("xnack")
    assert not {"acme_one", "acme_two"} & set(sys.modules)

    assert registry.mitigation("two").env == {"ACME": "two"}
    assert registry.mitigation("two").source_package == "acme-two"
    assert "acme_one" not in sys.modules


def test_an_environment_of_a_plugin_has_all_its_fields(offer: Callable[..., None]) -> None:
    source = (
        "ENV = {'docker': 'rocm/pytorch:latest', 'venv': '/opt/venv', 'rocm': '7.0.1',"
        " 'launcher': \"numactl -C '0 1'\", 'env': {'A': '1'}}"
    )
    offer("acme", {"aorta.environments": {"acme": "acme_env:ENV"}}, {"acme_env": source})

    assert Registry.load().environment("acme") == Environment(
        name="acme",
        docker="rocm/pytorch:latest",
        venv="/opt/venv",
        rocm="7.0.1",
        launcher=("numactl", "-C", "0 1"),
        env={"A": "1"},
        source_package="acme",
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import acme_is_not_installed", "ModuleNotFoundError: No module named 'acme_is_not_installed'"),
        ("raise ImportError('two\\nlines')", "ImportError: two lines"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("OTHER = {}", "AttributeError: .*ENV"),
        ("ENV: dict =", "SyntaxError"),
    ],
)
def test_the_message_about_an_unknown_name_says_which_plugins_are_broken(
    offer: Callable[..., None], source: str, reason: str
) -> None:
    offer("acme-broken", {"aorta.mitigations": {"acme": "acme_broken:ENV"}}, {"acme_broken": source})
    registry = Registry.load()

    assert registry.mitigation("xnack").env == {"HSA_XNACK": "1"}  # which it does not hurt
    assert "acme" in registry.names("mitigations")
    with pytest.raises(RegistryError, match=f"'acme'.*'acme-broken'.*{reason}"):
        registry.mitigation("acme")
    with pytest.raises(UnknownMitigationError, match=f"'nope'(?s:.*)'acme'.*'acme-broken'.*{reason}"):
        registry.mitigation("nope")


@pytest.mark.parametrize(
    ("kind", "payload", "reason"),
    [
        ("mitigation", "[('A', 'hunter2')]", "must be a mapping of environment variables"),
        ("mitigation", "{'A': 1234567}", r"\.A: the value must be a string, not int"),
        ("mitigation", "{1234567: 'x'}", "the name of a variable must be a string, not int"),
        ("mitigation", "{'1A': 'hunter2'}", "'1A' is not the name of an environment variable"),
        ("mitigation", "{'A\\n': 'hunter2'}", "is not the name of an environment variable"),
        ("mitigation", "{'TOKEN=hunter2': ''}", "'TOKEN=...' is not the name of an environment variable"),
        ("mitigation", "{'A': 'hunter2\\0'}", r"\.A: the value holds a character that no environment variable can"),
        ("environment", "'image'", "must be a mapping of fields, not str"),
        ("environment", "{'image': 'x'}", "unknown field 'image'; valid fields: docker, venv, rocm, launcher, env"),
        ("environment", "{'docker': 3}", r"\.docker: must be a string, not int"),
        ("environment", "{'docker': ''}", r"\.docker: '' is empty"),
        ("environment", "{'launcher': 'numactl \"'}", r"\.launcher: .* cannot be split into words: No closing quot"),
        ("environment", "{'launcher': ['a\\0']}", r"\.launcher: .* no command line can hold"),
        ("environment", "{'env': {'A': 1}}", r"\.env\.A: the value must be a string, not int"),
    ],
)
def test_what_cannot_be_used_is_refused_without_showing_values(
    offer: Callable[..., None], kind: str, payload: str, reason: str
) -> None:
    entry_points = {f"aorta.{kind}s": {"acme": "acme_payload:ENV"}}
    offer("acme", entry_points, {"acme_payload": f"ENV = {payload}"})

    with pytest.raises(RegistryError, match=reason) as caught:
        getattr(Registry.load(), kind)("acme")
    assert "distribution 'acme'" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "1234567" not in str(caught.value)


@pytest.mark.parametrize("group", ["workloads", "mitigations", "environments", "collectors"])
def test_a_name_offered_by_two_distributions_has_no_winner(offer: Callable[..., None], group: str) -> None:
    for name in ("acme-one", "acme-two"):
        offer(name, {f"aorta.{group}": {"shared": "acme_not_there:THING"}})

    with pytest.raises(RegistryCollisionError, match="'shared'") as caught:
        Registry.load()
    assert "'acme-one'" in str(caught.value)
    assert "'acme-two'" in str(caught.value)


@pytest.mark.parametrize(
    ("group", "name"), [("mitigations", "none"), ("environments", "local"), ("collectors", "nsys")]
)
def test_a_plugin_cannot_replace_what_is_built_in(offer: Callable[..., None], group: str, name: str) -> None:
    offer("acme", {f"aorta.{group}": {name: "acme_not_there:THING"}})

    with pytest.raises(RegistryCollisionError, match=rf"{name!r}.*pytest-aorta \(built in\).*'acme'"):
        Registry.load()


def test_a_distribution_that_is_twice_on_the_path_is_no_collision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    entry_points = {"aorta.mitigations": {"acme": "acme_twice:ENV"}}
    write_distribution(old, "acme-twice", entry_points, {"acme_twice": "ENV = {'A': 'old'}"}, version="1.0")
    write_distribution(new, "Acme_Twice", entry_points, {"acme_twice": "ENV = {'A': 'new'}"}, version="2.0")
    use_site(monkeypatch, old)
    use_site(monkeypatch, new)

    assert Registry.load().mitigation("acme").env == {"A": "new"}


def test_two_lines_of_one_distribution_collide_only_when_they_differ(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_distribution(tmp_path, "acme", {"aorta.workloads": {"acme": "acme_a:A"}})
    text = tmp_path / "acme-1.0.dist-info" / "entry_points.txt"
    use_site(monkeypatch, tmp_path)

    text.write_text("[aorta.workloads]\nacme = acme_a:A\nacme = acme_a:A\n")
    assert Registry.load().workload("acme").target == "acme_a:A"

    text.write_text("[aorta.workloads]\nacme = acme_a:A\nacme = acme_a:B\n")
    with pytest.raises(RegistryCollisionError, match=r"acme_a:A.*acme_a:B"):
        Registry.load()


@pytest.mark.parametrize(
    ("group", "name", "reason"),
    [
        ("mitigations", "a,b", "holds ','"),
        ("mitigations", "a+b", r"holds '\+'"),
        ("mitigations", "a\tb", "control character"),
        ("workloads", "a\x1b[31mb", "control character"),
        ("environments", "a\u202eb", "cannot be seen"),
        ("collectors", "", "is empty"),
    ],
)
def test_a_name_that_cannot_be_typed_is_refused_with_its_source(
    offer: Callable[..., None], group: str, name: str, reason: str
) -> None:
    offer("acme", {f"aorta.{group}": {name: "acme_not_there:THING"}})

    with pytest.raises(RegistryError, match=rf"name .* from distribution 'acme' .* cannot be used: .*{reason}"):
        Registry.load()


def test_fields_that_aorta_does_not_know_belong_into_a_group_of_our_own(offer: Callable[..., None]) -> None:
    modules = {"acme_environments": "NIGHTLY = {'rocm': '7.0'}\nPLAIN = {'venv': '/opt/venv'}\n"}
    theirs = {"nightly": "acme_environments:NIGHTLY", "plain": "acme_environments:PLAIN"}
    offer(
        "acme",
        {"aorta.environments": theirs, "pytest_aorta.environments": {"ours": "acme_environments:NIGHTLY"}},
        modules,
    )
    registry = Registry.load()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.environment("ours").rocm == "7.0"
        assert registry.environment("plain").venv == "/opt/venv"
    why = "AORTA does not know its field 'rocm'.*; offer it in the group 'pytest_aorta.environments'"
    with pytest.warns(UserWarning, match=why):
        assert registry.environment("nightly").rocm == "7.0"
