"""What differs around two trials of one request."""

from __future__ import annotations

from typing import Any

from support.records import record

from pytest_aorta.replay import changes
from pytest_aorta.trials.result import TrialResult

REQUEST = {
    "workload": {"name": "probe", "target": "a:B", "source_package": "x"},
    "environment": {"name": "local", "source_package": "x"},
    "overlay": {"SET": "1"},
    "ambient": {"SET": None, "FLAG": "a"},
    "interpreter": "/usr/bin/python3.10",
    "cwd": "/here",
}
ENV: dict[str, Any] = {
    "host": {"kernel": "6.1", "cpu_model": "Z"},
    "python": {"version": "3.10.1"},
    "torch": {"version": "2.12.0", "cuda": "13.0"},
    "packages": {"digest": "sha256:a", "versions": {"numpy": "2.1", "torch": "2.12.0"}},
    "git": {"root": "/here", "branch": "main", "commit": "c0ffee", "changed_files": 0},
    "accelerator": {"nvidia": {"driver_version": "580", "devices": [{"name": "H100"}]}, "amd": None},
    "env_vars": {"SET": "1", "FLAG": "a", "NCCL_DEBUG": "INFO", "MASTER_PORT": "1", "LONG": "x" * 100},
}
SEEDS = {"seed": 1, "generators": {"random": 2}}


def trial(**changed: Any) -> TrialResult:
    return TrialResult.from_dict(record(**{"request": REQUEST, "env": ENV, "seeds": SEEDS, **changed}))


def env(section: str, **facts: Any) -> dict[str, Any]:
    return {"env": {**ENV, section: {**ENV[section], **facts}}}


def test_between_equal_trials_nothing_differs() -> None:
    assert changes(trial(), trial()) == []


def test_what_differs_is_one_line() -> None:
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"host": "there"}, ["host here -> there"]),
        ({"request": {**REQUEST, "cwd": "/there"}}, ["working directory /here -> /there"]),
        ({"request": {**REQUEST, "interpreter": "/py"}}, ["interpreter /usr/bin/python3.10 -> /py"]),
        ({"request": {**REQUEST, "ambient": {"SET": "2", "FLAG": None}}}, ["FLAG a -> unset", "SET unset -> 2"]),
        ({"seeds": {**SEEDS, "seed": 9}}, ["seeds 1 -> 9"]),
        ({"seeds": {**SEEDS, "kept": ["torch"]}}, ["seeds: other generators were seeded"]),
        ({"request_fingerprint": "e11"}, ["the fingerprint of the request"]),
        ({"request_fingerprint": None}, []),
        (env("host", kernel="6.2"), ["kernel 6.1 -> 6.2"]),
        (env("python", version="3.11"), ["Python 3.10.1 -> 3.11"]),
        (env("torch", cuda=None), ["CUDA of torch 13.0 -> none"]),
        (env("torch", version="2.13.0"), ["torch 2.12.0 -> 2.13.0"]),
        (env("packages", digest="sha256:b"), ["installed packages changed"]),
        (env("packages", digest="sha256:b", versions={"torch": "2.12.0"}), ["numpy 2.1 -> not installed"]),
        (env("git", branch=None), ["git branch main -> none"]),
        (env("git", changed_files=2), ["files changed since the git commit 0 -> 2"]),
        (
            {"env": {**ENV, "git": None, "accelerator": {"nvidia": None, "amd": None}}},
            [
                "1 NVIDIA H100 -> no GPU",
                "NVIDIA driver 580 -> none",
                "git commit c0ffee -> none",
                "git branch main -> none",
                "files changed since the git commit 0 -> none",
            ],
        ),
        (env("env_vars", SET="2", MASTER_PORT="2", NCCL_DEBUG="WARN"), ["NCCL_DEBUG INFO -> WARN"]),
        (env("env_vars", LONG=""), [f"LONG {'x' * 57}... -> (empty)"]),
        ({"env": {"partial": True}}, []),
    ]
    for changed, lines in cases:
        assert changes(trial(), trial(**changed)) == lines


def test_of_ranks_the_seeds_of_each_count() -> None:
    ranks = [{"rank": 0, "seeds": SEEDS}, {"rank": 1, "seeds": {**SEEDS, "seed": 2}}]
    others = [ranks[0], {"rank": 1, "seeds": {**SEEDS, "seed": 3}}]

    assert changes(trial(seeds=None, ranks=ranks), trial(seeds=None, ranks=others)) == ["seeds of rank 1 2 -> 3"]
    assert changes(trial(seeds=None), trial()) == ["seeds: there are none in the record"]
