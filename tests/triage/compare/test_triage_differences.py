"""What differs between the environments of two sets of trials."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.environments import TWO_GPUS, env
from support.records import record

from pytest_aorta.triage.environments import Environments, differences


@given(st.lists(st.sampled_from(["2.12.0", "2.13.0", None]), min_size=1, max_size=6))
def test_the_order_of_trials_and_of_keys_does_not_matter(versions: list[str | None]) -> None:
    records = [record(env=env(torch__version=version)) for version in versions]
    shuffled = [json.loads(json.dumps(each, sort_keys=True)) for each in reversed(records)]
    one, two, parts = Environments(), Environments(), Environments()
    for each in records:
        one.add(each)
        alone = Environments()
        alone.add(each)
        parts.update(alone)
    for each in shuffled:
        two.add(each)
    assert one.facts() == two.facts() == parts.facts()
    assert differences(one, two) == differences(parts, one) == []


EIGHT = [{"gfx": "gfx942"}] * 8


def environments(*records: dict[str, Any]) -> Environments:
    found = Environments()
    for each in records:
        found.add(each)
    return found


def said(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return [str(each) for each in differences(environments(record(env=a)), environments(record(env=b)))]


def test_what_differs_is_one_short_clause() -> None:
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"torch__version": "2.13.0"}, ["torch 2.12.0 -> 2.13.0"]),
        ({"torch__version": "2.13.0", "torch__git_version": "beef", "torch__cuda": "13"}, ["torch 2.12.0 -> 2.13.0"]),
        ({"torch__git_version": "beef"}, ["commit of torch c0ffee -> beef"]),
        ({"env_vars": {"NCCL_DEBUG": "INFO"}}, ["OMP_NUM_THREADS 8 -> unset"]),
        ({"env_vars__NCCL_DEBUG": ""}, ["NCCL_DEBUG INFO -> (empty)"]),
        ({"host__memory_total_bytes": 16 * 2**30}, ["host memory 32 GiB -> 16 GiB"]),
        ({"host__memory_total_bytes": 32 * 2**30 - 4096}, []),
        ({"accelerator__nvidia__driver_version": "560.35"}, ["NVIDIA driver 550.54 -> 560.35"]),
        (
            {"accelerator__nvidia__devices": TWO_GPUS["accelerator"]["nvidia"]["devices"][:1]},
            ["2 NVIDIA H100 -> 1 NVIDIA H100"],
        ),
        (
            {"accelerator__nvidia": None, "accelerator__amd": {"driver_version": "6.8", "devices": EIGHT}},
            ["2 NVIDIA H100 -> 8 AMD gfx942", "NVIDIA driver 550.54 -> none", "AMD driver none -> 6.8"],
        ),
        ({"accelerator__nvidia": None}, ["2 NVIDIA H100 -> no GPU", "NVIDIA driver 550.54 -> none"]),
        ({"host__cpu_model": "AMD EPYC 9654"}, ["CPU AMD EPYC 7B13 -> AMD EPYC 9654"]),
        (
            {"host__kernel_command_line": "ro quiet amd_iommu=off"},
            ["kernel command line: without iommu=pt, with amd_iommu=off"],
        ),
        ({"process__cpu_affinity": "0-3,8"}, ["CPUs allowed 64 -> 5"]),
        ({"process__rlimits__memlock__soft": None}, ["limit memlock 65536 -> unlimited"]),
        ({"runtime_context__container": {"kind": "docker", "id": "f00"}}, ["container none -> docker"]),
        ({"git__commit": "fedcba0987654321"}, ["git commit 1234567890ab -> fedcba098765"]),
        ({"packages__versions__numpy": "2.2"}, ["numpy 2.1 -> 2.2"]),
        ({"packages__versions": {"torch": "2.12.0"}}, ["numpy 2.1 -> not installed"]),
        ({"packages__digest": "sha256:" + "b" * 64}, ["installed packages changed"]),
        ({"end__torch__cpu_capability": "DEFAULT"}, ["CPU kernels of torch AVX512 -> DEFAULT"]),
        ({"end__torch__deterministic": {"algorithms": True}}, ["torch deterministic algorithms off -> on"]),
        ({"host__new_fact": 1}, ["new fact none -> 1"]),
    ]
    for changes, lines in cases:
        assert said(env(), env(**changes)) == lines


def test_what_changes_with_every_trial_is_no_difference() -> None:
    other = env(
        process__pid=2,
        process__cwd="/b",
        process__load_average=[9.0, 9.0, 9.0],
        process__memory_available_bytes=1,
        env_vars__AORTA_TRIAL_INDEX="7",
        env_vars__TMPDIR="/tmp/b",
        env_vars__MASTER_PORT="1234",
        env_vars__SLURM_JOB_ID="77",
        git__as_of="trial",
        python__executable="/b/bin/python",
    )
    assert said(env(), other) == []


def test_the_most_important_difference_comes_first() -> None:
    other = env(
        git__commit="0" * 16,
        host__kernel="6.2",
        env_vars__OMP_NUM_THREADS="1",
        packages__versions__numpy="3",
        torch__nccl_version="2.22",
        torch__version="2.13.0",
        accelerator__nvidia__driver_version="560",
    )
    names = [line.split(" ")[0] for line in said(env(), other)]
    assert names == ["NVIDIA", "torch", "NCCL", "numpy", "OMP_NUM_THREADS", "kernel", "git"]


def test_what_is_not_known_is_no_difference() -> None:
    died_before_its_snapshot = {"partial": True, "partial_reasons": ["the trial's process took no snapshot"]}
    died_in_run = env(end=None)
    could_not_look = env(accelerator__nvidia=None, partial_reasons=["accelerator.nvidia: TimeoutExpired: 5 s"])
    for other in (died_before_its_snapshot, died_in_run, could_not_look, {}):
        assert said(env(), other) == said(other, env()) == []


def test_trials_of_one_side_may_differ_among_themselves() -> None:
    old, new = record(env=env()), record(env=env(torch__version="2.13.0"))
    mixed = environments(*[old] * 8, *[new] * 12)
    assert list(map(str, differences(mixed, environments(new)))) == [
        "torch 2.13.0 (12 trials), 2.12.0 (8 trials) -> 2.13.0"
    ]
    assert list(map(str, differences(mixed, environments(new, old)))) == []
    many = environments(*(record(env=env(env_vars__OMP_NUM_THREADS=str(i))) for i in range(6)))
    (difference,) = differences(environments(old), many)
    assert str(difference) == "OMP_NUM_THREADS 8 -> 0 (1 trial), 1 (1 trial), 2 (1 trial) and 3 other values"


def test_of_a_secret_is_said_that_it_has_changed_if_the_record_tells() -> None:
    def with_token(digest: str | None) -> dict[str, Any]:
        parts = {} if digest is None else {"fingerprint_parts": {"overlay": {"HF_TOKEN": digest}}}
        return record(env=env(env_vars__HF_TOKEN="<redacted>"), **parts)

    def lines(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
        return [str(each) for each in differences(environments(a), environments(b))]

    assert lines(with_token("sha256:1"), with_token("sha256:2")) == ["HF_TOKEN changed, value not recorded"]
    assert lines(with_token("sha256:1"), with_token("sha256:1")) == []
    assert lines(with_token(None), with_token(None)) == []
    assert lines(with_token("sha256:1"), record(env=env(), fingerprint_parts={"nproc": 1})) == [
        "HF_TOKEN (value not recorded) -> unset"
    ]


def test_code_options_and_the_way_of_running_are_compared() -> None:
    request = {"isolation": "fork", "launcher": "auto"}
    beside = {"slots": 1, "workers": 1, "hosts": 1}
    parts = {"sources": {"train.py": "1", "gone.py": "1"}, "nproc": 1, "imported_later": {"late.py": "1"}}
    a = record(env=env(), config={"size": 64}, request=request, side_by_side=beside, fingerprint_parts=parts)
    b = record(
        env=env(),
        config={"size": 128},
        request={**request, "isolation": "spawn"},
        side_by_side={**beside, "slots": 4, "workers": 2},
        fingerprint_parts={"sources": {"train.py": "2"}, "nproc": 1},
    )
    assert [str(each) for each in differences(environments(a), environments(b))] == [
        "gone.py is gone",
        "train.py changed",
        "option size 64 -> 128",
        "isolation fork -> spawn",
        "trials at a time 1 -> 8",
    ]


def test_with_lists_of_all_packages_every_one_is_compared() -> None:
    def listing(digest: str, versions: dict[str, str] | None) -> Environments:
        found = Environments(lambda digest: versions)
        found.add(record(env=env(packages__digest="sha256:" + digest * 64)))
        return found

    one = listing("a", {"aaa": "1", "numpy": "2.1", "torch": "2.12.0"})
    two = listing("b", {"aaa": "2", "bbb": "1", "torch": "2.12.0", "numpy": "2.1"})
    assert list(map(str, differences(one, two))) == ["aaa 1 -> 2", "bbb not installed -> 1"]
    assert list(map(str, differences(one, listing("b", None)))) == ["installed packages changed"]


def test_records_of_other_shapes_do_not_raise() -> None:
    cases: list[dict[str, Any]] = [
        {"env": []},
        {"env": {"accelerator": {"nvidia": {"devices": "two"}, "amd": []}}},
        {"env": {"host": {"numa": {}, "memory_total_bytes": "much"}, "process": {"cpu_affinity": "all"}}},
        {"env": {"packages": {"digest": 7, "versions": []}, "end": 3, "partial_reasons": {}}},
        {"config": None, "request": 3, "side_by_side": [], "fingerprint_parts": {"sources": [], "overlay": 1}},
    ]
    for broken in cases:
        one, two = environments(record(**broken)), environments(record(env=env()))
        assert all(map(str, differences(one, two)))
        assert all(each.to_plain() for each in differences(two, one))
