"""What makes two requests different, and how that is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pytest_aorta.registry import Environment, WorkloadEntry
from pytest_aorta.trials.execution import Execution, Limits
from pytest_aorta.trials.spec import (
    UNKNOWN,
    ImposedCounts,
    Parts,
    TrialSpec,
    differences,
    fingerprint,
    fingerprint_parts,
)

SPEC = TrialSpec(
    workload=WorkloadEntry("w", "module:W", "test"),
    environment=Environment("here", source_package="test"),
    mitigations=("none",),
    overlay={},
    environment_index=0,
    mitigation_index=0,
    trial_index=0,
)

SURROUNDINGS: dict[str, Any] = {
    "python": "3.11.9 (main)",
    "interpreter": "/usr/bin/python",
    "torch": "2.12.0",
    "packages": "sha256:0123",
    "cpus": 2,
    "variables": {"OMP_NUM_THREADS": "4"},
}


def parts(
    config: dict[str, Any] | None = None,
    nproc: int = 1,
    imposes: ImposedCounts = ImposedCounts(),  # noqa: B008  (frozen)
    together: bool = False,
    found: Mapping[str, Any] = MappingProxyType({}),
    **fields: Any,
) -> Parts:
    """``found``: in the process that has imported the workload."""
    known = {"config": config or {}, "sources": {"w.py": "digest"}, "surroundings": SURROUNDINGS, **found}
    return fingerprint_parts(replace(SPEC, **fields), nproc, imposes, together=together, **known)


def taken(**changed: Any) -> str:
    return fingerprint(parts(**changed))


def test_what_decides_the_outcome_changes_the_fingerprint() -> None:
    cases: list[dict[str, Any]] = [
        {"found": {"sources": {"w.py": "other digest"}}},
        {"found": {"data_files": {"golden.pt": "digest"}}},
        {"found": {"data_files": {"golden.pt": None}}},
        *({"found": {"surroundings": {**SURROUNDINGS, name: "another"}}} for name in list(SURROUNDINGS)[:-1]),
        {"found": {"surroundings": {**SURROUNDINGS, "variables": {"OMP_NUM_THREADS": "1"}}}},
        {"imposes": ImposedCounts(threads=1)},
        {"imposes": ImposedCounts(cores=1)},
        {"imposes": ImposedCounts(devices=0)},
        {"config": {"size": 1}},
        {"nproc": 2},
        {"execution": Execution(launcher="torchrun")},
        {"execution": Execution(isolation="spawn")},
        {"limits": Limits(memory=2**30)},
        {"mitigations": ("xnack",)},
        {"overlay": {"X": "1"}},
        {"trial_index": 1},
        {"workload": WorkloadEntry("v", "module:W", "test")},
        {"environment": Environment("there", source_package="test")},
        {"environment": Environment("here", venv="/v", source_package="test")},
        {"environment": Environment("here", launcher=("numactl",), source_package="test")},
    ]
    for changed in cases:
        assert taken(**changed) != taken()


def test_what_does_not_decide_the_outcome_does_not() -> None:
    limits = Limits(timeout=3.0, stall_timeout=1.0, grace=0.0)
    assert taken(limits=limits, environment_index=3, mitigation_index=1) == taken()
    assert taken(overlay={"A": "1", "B": "2"}) == taken(overlay={"B": "2", "A": "1"})
    assert taken(config={"a": 1, "b": 2}) == taken(config={"b": 2, "a": 1})


def test_processes_that_run_a_trial_together_have_one_fingerprint() -> None:
    """A launcher may give each rank devices, cores and variables of its own."""
    another = {"found": {"surroundings": {**SURROUNDINGS, "variables": {"OMP_NUM_THREADS": "1"}, "cpus": 1}}}
    assert taken(**another, together=True) == taken(together=True)
    assert taken(found={"surroundings": {**SURROUNDINGS, "torch": "2.13"}}, together=True) != taken(together=True)


def test_a_variable_counts_once_where_the_trial_sets_it() -> None:
    overlay = {"OMP_NUM_THREADS": "1"}
    ambient = {"found": {"surroundings": {**SURROUNDINGS, "variables": {"OMP_NUM_THREADS": "7"}}}}
    assert taken(**ambient, overlay=overlay) == taken(overlay=overlay)


def test_what_is_not_there_is_no_part() -> None:
    assert not {"elastic", "imposed", "data_files", "memory", "seed", "overlay"} & parts().keys()


# As messages


def changes(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    listed = {"sha256:0123": {"torch": "2.12.0", "numpy": "1.26"}, "sha256:4567": {"torch": "2.13.0", "einops": "0.8"}}
    return differences(parts(**earlier), parts(**now), listed.get)


def around(**changed: Any) -> dict[str, Any]:
    return {"found": {"surroundings": {**SURROUNDINGS, **changed}}}


def test_each_change_is_named() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
        (around(), around(torch="2.13.0"), ["torch 2.12.0 -> 2.13.0"]),
        (around(), around(torch="2.12.0 0a1b2c"), ["torch 2.12.0 built anew"]),
        (around(), around(python="3.12.1 (main)"), ["Python 3.11.9 -> 3.12.1"]),
        (around(), around(interpreter="/venv/bin/python"), ["interpreter /usr/bin/python -> /venv/bin/python"]),
        (around(), around(cpus=1), ["number of CPUs 2 -> 1"]),
        (around(), around(variables={"OMP_NUM_THREADS": "1"}), ["OMP_NUM_THREADS 4 -> 1"]),
        (around(), around(variables={}), ["OMP_NUM_THREADS 4 -> unset"]),
        (around(), {"overlay": {"OMP_NUM_THREADS": "1"}}, ["OMP_NUM_THREADS 4 -> 1"]),
        ({"overlay": {"MINE": "secret"}}, {"overlay": {"MINE": "other"}}, ["MINE changed"]),
        ({}, {"overlay": {"MINE": "secret"}}, ["MINE unset -> <redacted>"]),
        ({"config": {"steps": 10}}, {"config": {"steps": 20}}, ["option steps 10 -> 20"]),
        ({}, {"found": {"sources": {"w.py": "other", "helper.py": "digest"}}}, ["helper.py is new", "w.py changed"]),
        ({"found": {"data_files": {"golden.pt": "digest"}}}, {}, ["golden.pt is gone"]),
        ({}, {"imposes": ImposedCounts(threads=1)}, ["imposed threads none -> 1"]),
        ({"nproc": 2}, {"nproc": 4}, ["number of ranks 2 -> 4"]),
        ({}, {"execution": Execution(isolation="spawn")}, ["isolation auto -> spawn"]),
        (around(), around(packages="sha256:89ab"), ["installed packages changed"]),
        (
            around(),
            around(packages="sha256:4567", torch="2.13.0"),
            ["torch 2.12.0 -> 2.13.0", "einops not installed -> 0.8", "numpy 1.26 -> not installed"],
        ),
    ]
    for earlier, now, lines in cases:
        assert changes(earlier, now) == lines


def test_equal_requests_differ_in_nothing_others_in_a_seed_and_an_old_record_does_not_say() -> None:
    assert changes({}, {}) == []
    (line,) = changes({}, {"execution": Execution(seed=7)})
    assert line.startswith("seed none -> ")
    assert differences({}, parts()) == [UNKNOWN]
