"""What a record says of how its trial was run."""

from __future__ import annotations

import sys
from dataclasses import fields, replace

from support.plans import SPEC

from pytest_aorta.launch.environment import Inherited
from pytest_aorta.launch.record import request_of
from pytest_aorta.registry import Environment
from pytest_aorta.trials.execution import ElasticOptions, Execution, Limits, Resources
from pytest_aorta.trials.result import Request, RequestedEnvironment

INHERITED = Inherited({"FLAG": "ambient", "HF_TOKEN": "canary"}, "/here", ("/added", f"{sys.prefix}/lib/x"))


def of(seed: int | None = None, timeout: float | None = None, **changed: object) -> Request:
    return request_of(replace(SPEC, **changed), INHERITED, seed=seed, timeout=timeout)  # type: ignore[arg-type]


def test_every_field_of_an_environment_but_its_variables_is_requested() -> None:
    assert set(RequestedEnvironment.model_fields) == {field.name for field in fields(Environment)} - {"env"}


def test_secrets_are_named_and_left_out() -> None:
    request = of(
        overlay={"API_KEY": "canary", "CACHE": "redis://u:canary@h", "FLAG": "on"},
        watched=("FLAG", "HF_TOKEN", "OTHER"),
        environment=Environment("e", launcher=("env", "A_TOKEN=canary", "--key", "canary"), source_package="test"),
        resources=Resources(hosts=("ssh=gpu7//env:TOKEN=canary",)),
    )

    assert request.overlay == {"API_KEY": "<redacted>", "CACHE": "<redacted>", "FLAG": "on"}
    assert request.ambient["FLAG"] == "ambient"
    assert request.ambient["HF_TOKEN"] == "<redacted>"
    assert request.ambient["OTHER"] is None
    assert request.environment.launcher == ["env", "A_TOKEN=<redacted>", "--key", "<redacted>"]
    assert request.resources.hosts == ("ssh=gpu7//env:TOKEN=...",)
    assert "canary" not in request.model_dump_json()


def test_a_deadline_that_overrides_is_the_one_that_counts() -> None:
    assert of(limits=Limits(timeout=5)).limits.timeout == 5
    assert of(limits=Limits(timeout=5), timeout=2).limits.timeout == 2


def test_the_seed_is_the_given_one_else_that_of_the_request() -> None:
    assert of().seed is None
    assert of(seed=3).seed == 3
    seeded = replace(SPEC, execution=Execution(seed=7))
    assert request_of(seeded, INHERITED).seed == seeded.seed
    assert request_of(seeded, INHERITED).run_seed == 7


def test_of_the_agent_s_options_those_are_kept_that_were_given() -> None:
    execution = Execution(elastic=ElasticOptions(max_restarts=2, nnodes=(1, 2)))

    assert of().elastic == {}
    assert of(execution=execution).elastic == {"max_restarts": 2, "nnodes": [1, 2]}


def test_folders_of_the_interpreter_are_not_listed() -> None:
    request = of()

    assert (request.interpreter, request.cwd, request.sys_path) == (sys.executable, "/here", ["/added"])
    venv = of(environment=Environment("v", venv="/venv", source_package="test"))
    assert (venv.interpreter, venv.sys_path) == ("/venv/bin/python", [])
