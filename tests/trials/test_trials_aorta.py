"""What AORTA's workloads declare, and the options that its runner adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_distributions import install

from pytest_aorta.trials import loading as aorta
from pytest_aorta.trials.loading import ConfigError, describe
from pytest_aorta.trials.workload import Workload


class Plain:
    """A class with the two methods, and nothing else."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def setup(self) -> None: ...

    def run(self) -> None: ...


def declaring(**attributes: Any) -> type[Any]:
    return type("Declaring", (Plain,), attributes)


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


def test_launcher_variables_are_no_defaults_of_a_workload() -> None:
    ranked = declaring(isolated_startup_env=staticmethod(lambda config: {"RANK": "3"}))
    with pytest.raises(ConfigError, match="RANK is set by the launcher of the ranks"):
        aorta.startup_variables(ranked, {})


def test_an_entry_point_may_say_the_variables_instead_of_the_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {
        "aorta.workloads": {"queues": "queues:Queues", "other": "queues:Other"},
        "aorta.workload_startup_env": {"queues": "queues:startup"},
    }
    startup = "def startup(config):\n    return {'QUEUES': str(config.get('queues', 4))}\n"
    install(monkeypatch, tmp_path, "queues", groups, {"queues": startup})
    queues = declaring(isolated_startup_env=staticmethod(lambda config: {"OTHER": "1"}))
    queues.__module__ = "queues"
    queues.__qualname__ = "Queues"
    assert aorta.startup_variables(queues, {"queues": 2}) == {"QUEUES": "2"}
    queues.__qualname__ = "Other"
    assert aorta.startup_variables(queues, {}) == {"OTHER": "1"}
