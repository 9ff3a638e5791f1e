"""``RunRequest`` takes and refuses what the command line does, in the same words, before anything runs."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.plans import typed

import pytest_aorta
from pytest_aorta import Execution, Limits, RequestError, Resources, RunRequest, run_trials
from pytest_aorta.launch.launch_mode import EngineUnusable, LaunchModeError
from pytest_aorta.plan import PlanError
from pytest_aorta.plugin.options import read_selection
from pytest_aorta.registry import RegistryError
from pytest_aorta.settings import BY_NAME, SETTINGS, OptionError
from pytest_aorta.trials.execution import ElasticOptions
from pytest_aorta.trials.loading import ConfigError

#: What an option refuses, and what is said to be valid; the same in both worlds.
REFUSED = {
    "workload": (["", " "], "a name"),
    "trials": (["0", "-1", "1.5", "many", "9" * 19], "a whole number of at least 1"),
    "environment": (["", " "], "a name"),
    "mitigations": (["", "a,,b"], "names separated by commas"),
    "extra-env": (["A", "A B=1", "=1", "A=\0"], "NAME=VALUE[,NAME=VALUE...], a name being letters, digits and undersc"),
    "steps": (["0", "x"], "a whole number of at least 1"),
    "config": (["size", "=64"], "KEY=VALUE"),
    "results-dir": (["", " "], "a name"),
    "resume": (["maybe"], "true or false"),
    "history": (["0", "-1", "none"], "a whole number of at least 1, or all"),
    "collect": (["", "a,"], "names separated by commas"),
    "registry-file": (["", " "], "a name"),
    "isolation": (["thread", ""], "one of auto, fork, spawn, none"),
    "launcher": (["mpi"], "one of auto, elastic, torchrun, external, as-typed"),
    "health": (["maybe"], "true or false"),
    "nproc": (["0", "two"], "a whole number of at least 1"),
    "elastic": (["max_restarts=-1", "nnodes=2:1", "nonsense=1"], ""),
    "seed": (["-1", "1.5"], "a whole number of at least 0"),
    "timeout": (["0", "-1", "nan", "inf", "5x"], "a number of seconds above 0, or a time such as 5m or 1h30m"),
    "stall-timeout": (["0", "x"], "a number of seconds above 0, or a time such as 5m or 1h30m"),
    "grace": (["-1", "nan"], "a number of seconds from 0, or a time such as 1m"),
    "memory": (["0", "8X"], "a number of bytes above 0, such as 500M or 1.5G (K, M, G, T count in 1024s)"),
    "log-limit": (["-1", "x"], "a number of bytes above 0, such as 500M or 1.5G (K, M, G, T count in 1024s)"),
    "fail-on-nonfinite": (["maybe"], "true or false"),
    "allow-nonfinite": (["", " "], "a name"),
    "preload": (["", "torch,", "1x"], "auto, none, or names of modules separated by commas, such as torch,numpy"),
    "zygotes": (["0", "two"], "a whole number of at least 1"),
    "cwd": (["there"], "one of here, fresh, copy"),
    "slots": (
        ["0", "many", ",own-cores"],
        "a whole number of at least 1, or auto; with cores of their own: 4,own-cores, or own-cores",
    ),
    "devices": (["0,0", "3-1", "gpu"], "a list such as 0-3 or 0,2-4, or none"),
    "host": (["", "telnet=x", "popen//speed=9", "99999*popen"], ""),
}

#: Fields that are spelled otherwise than their options.
SPELLED = {"config_overrides": "config", "registry_files": "registry-file", "hosts": "host"}

#: Fields that pytest-xdist decides, or another option.
NO_OPTION = ("workers", "worker", "own_cores")

GROUPS: dict[type, str] = {Execution: "execution", Limits: "limits", Resources: "resources"}

#: Values that have no text, refused in the words of the option.
ODD: dict[str, list[Any]] = {
    "workload": [None, 3, RunRequest],
    "trials": [None, True, 2.0, 0, [1], 10**18],
    "environment": [None, ("local",)],
    "mitigations": [(), None, ("none", ""), [["none"]], {"none"}],
    "steps": [True, 0, 1.5],
    "config": [None, [("a", 1)], {"": 1}, {1: 1}],
    "results-dir": [None, 3],
    "resume": [None, 2],
    "history": [None, 0, -1, 2.5],
    "collect": [None, ("rocprof", " ")],
    "registry-file": [None, 3, ("",)],
    "health": [None, 2],
    "isolation": [None, 1],
    "launcher": [None],
    "nproc": [False, 2.0],
    "seed": [-1, True, 0.5],
    "timeout": [True, 0, -1.0, math.nan, math.inf, [1]],
    "stall-timeout": [0, "soon"],
    "grace": [None, -0.1],
    "memory": [True, 0, 1.5e9, 2**63],
    "log-limit": [None, 0],
    "fail-on-nonfinite": [None, 2],
    "allow-nonfinite": [None, 3],
    "preload": [None, (), 3, ("torch", "")],
    "zygotes": [0, 1.5, True],
    "cwd": [None],
    "slots": [None, 0, 1.5, True],
    "devices": [(0, 0), (-1,), ("gpu",), 3, (True,), (1.0,)],
}


#: What a run of several cells can be asked for.
OF_PYTEST = {
    "vary",
    "shard",
    "where",
    "order",
    "replay",
    "baseline",
    "margin",
    "speed-margin",
    "report",
    "stop",
    "gate",
    "minimize",
    "amplify",
    "bisect",
    "explain",
    "graph",
    "build",
    "actions",
    "units",
    "max-trials",
    "collect-on-failure",
    "since",
}

#: Options of the workload ``command``, which a request has among ``config_overrides``.
OF_COMMANDS = {
    *("command", "fail-on", "pass-on", "skip-on", "metric", "metrics-from"),
    "depends",
    "observe",
}


def fields() -> list[tuple[type, str, str]]:
    """Every field of a request that is no group of others, with its class and its option."""
    found = []
    for kind in (RunRequest, *GROUPS):
        for field in dataclasses.fields(kind):
            if field.name not in NO_OPTION and (kind is not RunRequest or field.name not in GROUPS.values()):
                found.append((kind, field.name, SPELLED.get(field.name, field.name.replace("_", "-"))))
    return found


def request_with(kind: type, field: str, value: Any) -> RunRequest:
    given: dict[str, Any] = {"workload": "gemm", "trials": 1}
    if kind is RunRequest:
        return RunRequest(**{**given, field: value})
    return RunRequest(**given, **{GROUPS[kind]: kind(**{field: value})})


def test_every_field_has_an_option_and_a_table_of_what_it_refuses() -> None:
    options = {option.name for option in SETTINGS}
    assert {option for _, _, option in fields()} == set(REFUSED) == options - OF_PYTEST - OF_COMMANDS
    assert set(ODD) == set(REFUSED) - {"extra-env", "elastic", "host"}


def test_a_text_is_refused_in_the_words_of_the_command_line() -> None:
    for kind, field, option, text in [
        (*each, text) for each in fields() for text in REFUSED[each[2]][0] if each[1] != "elastic"
    ]:
        with pytest.raises(OptionError) as theirs:
            read_selection(typed(**{BY_NAME[option].ini: [text] if BY_NAME[option].repeat else text}), {})
        value = text if field != "config_overrides" else {text.partition("=")[0]: 1} if text[0] == "=" else text
        with pytest.raises(RequestError) as ours:
            request_with(kind, field, value)
        source, _, words = str(theirs.value).partition(": ")
        assert source == BY_NAME[option].flag
        if field == "config_overrides":
            words = words.replace(repr(text), repr(value))
        if field == "trials":  # of one cell, there is none to be decided
            words = words.removesuffix(", or auto")
        assert str(ours.value) == f"{kind.__name__}.{field}: {words}"
        assert str(ours.value).endswith(REFUSED[option][1]) or option == "extra-env"


def test_a_value_is_refused_in_the_same_words() -> None:
    for kind, field, option, value in [(*each, value) for each in fields() for value in ODD.get(each[2], ())]:
        with pytest.raises(RequestError) as caught:
            request_with(kind, field, value)
        assert str(caught.value) == f"{kind.__name__}.{field}: {value!r} is not valid; expected {REFUSED[option][1]}"


def test_a_group_of_fields_is_of_its_class() -> None:
    value_cases: list[Any] = [None, "fork", {"nproc": 2}]
    for value in value_cases:
        field_cases: list[tuple[str, str]] = [("execution", "Execution"), ("limits", "Limits"), ("resources", "Resour")]
        for field, name in field_cases:
            with pytest.raises(
                RequestError, match=rf"^RunRequest\.{field}: {re.escape(repr(value))} .*; expected {name}"
            ):
                RunRequest("gemm", 1, **{field: value})


def test_what_the_command_line_takes_a_field_takes() -> None:
    request = RunRequest(
        "gemm",
        cast(Any, "4"),
        mitigations=cast(Any, "tf32_off,omp_1"),
        extra_env=cast(Any, "A=1,2,B=3"),
        results_dir=cast(Any, "out"),
        history=cast(Any, "all"),
        registry_files=cast(Any, "a.json"),
        limits=Limits(timeout=cast(Any, "1.5"), memory=cast(Any, "8G")),
        resources=Resources(slots=cast(Any, "auto,own-cores"), devices=cast(Any, "2,0-1"), hosts=cast(Any, "2*popen")),
    )
    assert (request.trials, request.mitigations) == (4, ("tf32_off", "omp_1"))
    assert request.extra_env == {"A": "1,2", "B": "3"}
    assert (request.results_dir, request.history) == (Path("out"), sys.maxsize)
    assert request.registry_files == (Path("a.json"),)
    assert request.limits == Limits(timeout=1.5, memory=8 * 2**30)
    assert request.resources == Resources(slots=3, own_cores=True, devices=(0, 1, 2), hosts=("popen", "popen"))


def test_values_of_numpy_and_lists_are_plain_values_afterwards() -> None:
    request = RunRequest(
        "gemm",
        np.int64(3),
        mitigations=["none"],  # type: ignore[arg-type]
        limits=Limits(timeout=np.float32(2), memory=np.int32(4096)),
        resources=Resources(devices=range(2)),  # type: ignore[arg-type]
    )
    assert [type(it) for it in (request.trials, request.mitigations, request.limits.timeout)] == [int, tuple, float]
    assert (type(request.limits.memory), request.resources.devices) == (int, (0, 1))
    assert dataclasses.replace(request, trials=1) == dataclasses.replace(request, trials=1)


SECRET = "hunter2"


@pytest.mark.parametrize("given", [{"A B": SECRET}, {f"A={SECRET}": "1"}, {"RANK": SECRET}, {"A": [SECRET]}, [SECRET]])
def test_no_variable_s_value_is_repeated(given: Any) -> None:
    with pytest.raises(RequestError, match=r"RunRequest\.extra_env: ") as caught:
        RunRequest("gemm", 1, extra_env=given)
    assert SECRET not in str(caught.value)
    with pytest.raises(RequestError, match=r"Resources\.hosts: ") as caught:
        RunRequest("gemm", 1, resources=Resources(hosts=(f"popen//env:A={SECRET}//speed=9",)))
    assert SECRET not in str(caught.value)


def test_one_class_is_enough_to_catch_all_that_prevents_every_trial() -> None:
    assert pytest_aorta.RequestError is RequestError
    for kind in (RegistryError, PlanError, ConfigError, LaunchModeError, EngineUnusable, OptionError):
        assert issubclass(kind, RequestError)
    assert issubclass(RequestError, ValueError)


def test_what_only_shows_in_combination_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    there = tmp_path / "results"
    for request, message in (
        (RunRequest("gemmm", 1, results_dir=there), "unknown workload 'gemmm'; available: .*; did you mean 'gemm'"),
        (RunRequest("gemm", 1, results_dir=there, collect=("rokprof",)), "unknown collector 'rokprof'; available: "),
        (
            RunRequest("gemm", 1, results_dir=there, execution=HERE, resources=Resources(devices=(0,))),
            "devices=0 and isolation=none: a trial in pytest's own process",
        ),
        (
            RunRequest("gemm", 1, results_dir=there, execution=NODES, resources=Resources(slots=2)),
            "elastic=nnodes: trials of several nodes run one at a time, without slots",
        ),
        (
            RunRequest("gemm", 1, results_dir=tmp_path / "file" / "results", execution=HERE),
            "RunRequest.results_dir='.*/file/results': cannot write there: Not a directory",
        ),
    ):
        with pytest.raises(RequestError, match=message):
            run_trials(request)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    with pytest.raises(RequestError, match="pytest was started by the script of SLURM job 12, on one node only"):
        run_trials(RunRequest("gemm", 1, results_dir=there, execution=NODES, resources=Resources(slots=2)))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(
        RequestError, match="slots=2: pytest is a rank of an outer launcher, and runs one trial at a time"
    ):
        run_trials(RunRequest("gemm", 1, results_dir=there, resources=Resources(slots=2)))
    assert not there.exists()


HERE = Execution(isolation="none")
NODES = Execution(elastic=ElasticOptions(nnodes=(2, 2), rdzv_endpoint="here:29500"))
