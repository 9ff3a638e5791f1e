"""What AORTA's workloads declare, and the options that its runner adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.trials import loading as aorta
from pytest_aorta.trials.loading import ConfigError, describe, with_added
from pytest_aorta.trials.workload import Workload


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "1")


class Plain:
    """A class with the two methods, and nothing else."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def setup(self) -> None: ...

    def run(self) -> None: ...


def added(cls: type[Any], value: Any) -> Any:
    return with_added(value, cls, "process", "w_d0_m0_t0", {"env": []}, ["A"], [])


def declaring(**attributes: Any) -> type[Any]:
    return type("Declaring", (Plain,), attributes)


def test_a_class_that_declares_something_of_aortas_gets_them_as_options() -> None:
    known = declaring(trial_isolation_supported=frozenset({"process"}))
    assert added(known, {"size": 3}) == {
        "size": 3,
        "_aorta_environment": {"env": {}},
        "_aorta_trial_env": {"A": "1"},
        "_aorta_trial_isolation": "process",
    }
    assert added(Plain, {"size": 3}) == {"size": 3}
    assert added(Plain, 5) == 5


@pytest.mark.parametrize(
    ("attributes", "scope"),
    [
        ({}, "global"),
        ({"result_scope": "rank_local"}, "rank_local"),
        ({"distributed_result_scope": "rank_local"}, "rank_local"),
    ],
)
def test_either_word_for_the_scope_of_a_result_counts(attributes: dict[str, str], scope: str) -> None:
    assert aorta.result_scope(declaring(**attributes)) == scope
    assert aorta.result_scope(type("Ours", (Workload,), attributes)) == scope


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"distributed_result_scope": "local"}, "distributed_result_scope is 'local'; valid: global, rank_local"),
        ({"isolated_startup_env": lambda config: {"A": 1}}, "isolated_startup_env() has to return a dict of texts"),
    ],
)
def test_what_aorta_does_not_know_is_refused_before_the_first_trial(attributes: dict[str, Any], message: str) -> None:
    attributes = {name: staticmethod(it) if callable(it) else it for name, it in attributes.items()}
    assert message in describe(declaring(**attributes), {}, None)["config_error"]


def test_a_description_has_the_variables_for_the_start() -> None:
    queues = declaring(isolated_startup_env=staticmethod(lambda config: {"QUEUES": str(config["queues"])}))
    assert describe(queues, {"queues": "2"}, None)["startup_variables"] == {"QUEUES": "2"}


def test_launcher_variables_are_no_defaults_of_a_workload() -> None:
    ranked = declaring(isolated_startup_env=staticmethod(lambda config: {"RANK": "3"}))
    with pytest.raises(ConfigError, match="RANK is set by the launcher of the ranks"):
        aorta.startup_variables(ranked, {})


def test_an_entry_point_may_say_the_variables_instead_of_the_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "queues-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: queues\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[aorta.workloads]\nqueues = queues:Queues\nother = queues:Other\n"
        "[aorta.workload_startup_env]\nqueues = queues:startup\n"
    )
    (tmp_path / "queues.py").write_text("def startup(config):\n    return {'QUEUES': str(config.get('queues', 4))}\n")
    monkeypatch.syspath_prepend(tmp_path)
    queues = declaring(isolated_startup_env=staticmethod(lambda config: {"OTHER": "1"}))
    queues.__module__ = "queues"
    queues.__qualname__ = "Queues"
    assert aorta.startup_variables(queues, {"queues": 2}) == {"QUEUES": "2"}
    queues.__qualname__ = "Other"
    assert aorta.startup_variables(queues, {}) == {"OTHER": "1"}
