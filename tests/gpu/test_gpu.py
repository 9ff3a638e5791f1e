"""What can only be shown on a GPU. ``pytest tests/gpu`` takes at most 8 minutes; docs/guides/gpu.md says what was run.

``AORTA_GPU_SUITE=cpu`` runs on the CPU what has a way there: a look at the tests themselves, where there is no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage, text

from pytest_aorta.runtime.resources.devices import find_devices

HERE = Path(__file__).parent
GPUS = find_devices().visible
HAS_GPU = bool(GPUS)


def gpus(number: int, *, on_cpu: bool = False) -> pytest.MarkDecorator:
    is_there = len(GPUS) >= number or (on_cpu and not HAS_GPU and os.environ.get("AORTA_GPU_SUITE") == "cpu")
    return pytest.mark.skipif(not is_there, reason=f"needs {number} GPU{'s' * (number > 1)}; this host has {len(GPUS)}")


one_gpu, only_gpu, two_gpus, two_ranks = gpus(1, on_cpu=True), gpus(1), gpus(2), gpus(2, on_cpu=True)


RUN = ("pytest", "-p", "no:cacheprovider")


@pytest.fixture(autouse=True)
def with_files(stage: Stage) -> None:
    stage.copy(HERE / "gpu_workloads.py")
    stage.copy(HERE / "train.py")


def metrics(stage: Stage, results: str | None = None) -> list[dict[str, Any]]:
    return [trial["result"]["metrics"] for trial in stage.trials(results).values()]


# Processes and devices


@one_gpu
@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_trials_use_the_gpu_in_processes_of_their_own(stage: Stage, isolation: str) -> None:
    done = stage.command(*RUN, "gpu_workloads.py::Uses", "--aorta-trials=4", f"--aorta-isolation={isolation}")

    assert set(stage.statuses().values()) == {"ok"}, text(done)
    assert len({each["pid"] for each in metrics(stage)}) == 4
    assert not any("cannot be forked" in warning for each in stage.trials().values() for warning in each["warnings"])


@only_gpu
def test_leased_device_is_the_only_one_that_a_trial_sees_and_none_hides_all(stage: Stage) -> None:
    device = str(GPUS[0])
    stage.command(*RUN, "gpu_workloads.py::Uses", f"--aorta-devices={device}", "--aorta-results-dir=one")
    stage.command(*RUN, "gpu_workloads.py::Uses", "--aorta-devices=none", "--aorta-results-dir=none")

    (record,) = stage.trials("one").values()
    assert record["imposed"]["devices"] == [int(device)]
    assert [each["seen"] for each in metrics(stage, "one")] == [1]
    assert [each["seen"] for each in metrics(stage, "none")] == [0]


@only_gpu
def test_two_runs_take_turns_on_a_leased_device(stage: Stage) -> None:
    device = GPUS[0]
    words = [*RUN, "gpu_workloads.py::Uses", "--aorta-trials=3", f"--aorta-devices={device}"]
    both = [stage.start_command(*words, f"--aorta-results-dir={name}") for name in ("left", "right")]
    for process in both:
        stage.finish(process)

    spans = sorted((each["begun"], each["ended"]) for name in ("left", "right") for each in metrics(stage, name))
    assert len(spans) == 6
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))


@two_gpus
def test_slots_have_a_device_each(stage: Stage) -> None:
    first, second = GPUS[:2]
    options = ["--aorta-trials=4", "--aorta-slots=2", f"--aorta-devices={first},{second}"]
    done = stage.command(*RUN, "gpu_workloads.py::Uses", *options)

    assert set(stage.statuses().values()) == {"ok"}, text(done)
    assert all(each["seen"] == 1 for each in metrics(stage))
    assert len({each["uuids"][0] for each in metrics(stage)}) == 2


# Faults


@one_gpu
@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        ("out_of_memory", "workload_failed", r"out of memory|can't allocate memory|not enough memory"),
        ("device_assert", "workload_failed", r"device-side assert|out of bounds|out of range"),
        ("illegal_access", "workload_failed", r"illegal memory access|SIGSEGV|SIGABRT"),
        ("hangs", "timeout", r"the deadline of 20 s passed in run\(\)"),
    ],
)
def test_fault_is_recorded_and_the_next_trial_has_the_device(stage: Stage, fault: str, status: str, says: str) -> None:
    options = [f"--aorta-vary=config.fault={fault},nothing", "--aorta-trials=2", "--aorta-timeout=20"]
    options += [f"--aorta-devices={GPUS[0]}"] if HAS_GPU else []
    done = stage.command(*RUN, "gpu_workloads.py::Fails", *options)

    statuses = {path: each for path, each in stage.statuses().items() if "nothing" not in path}
    assert set(statuses.values()) == {status}, text(done)
    assert set(stage.statuses().values()) == {status, "ok"}
    for path in statuses:
        failure = stage.trial(path)["failure"]
        assert failure["phase"] == "run"
        said = f"{failure['type']} {failure['message']} {failure['signal']}"
        assert any(each in said for each in says.replace("\\", "").split("|")), said
    assert len(stage.trials()) == 4


# Ranks


@two_ranks
@pytest.mark.parametrize(
    ("fault", "kind", "detail"),
    [
        ("raises", "exception", "ValueError"),
        ("exits", "exit_code", 3),
        ("killed", "signal", "SIGKILL"),
        ("segfault", "signal", "SIGSEGV"),
        ("device_assert", None, None),  # raised, or NCCL's watchdog aborts first
    ],
)
def test_rank_that_fails_beside_a_collective_is_the_cause(
    stage: Stage, fault: str, kind: str | None, detail: str | int | None
) -> None:
    done = stage.command(*RUN, "gpu_workloads.py::Ranks", f"--aorta-config=fault={fault}", "--aorta-timeout=60")

    (record,) = stage.trials().values()
    failure = record["failure"]
    assert record["exit_status"] == "workload_failed", text(done)
    assert failure["rank"] == 1
    assert kind in (None, failure["kind"])
    assert detail is None or detail in (failure["type"], failure["signal"], failure["exit_code"])


@two_ranks
def test_rank_that_does_not_come_to_a_collective_is_named_and_the_flight_recorder_is_kept(stage: Stage) -> None:
    done = stage.command(*RUN, "gpu_workloads.py::Ranks", "--aorta-config=fault=hangs", "--aorta-timeout=40")

    (record,) = stage.trials().values()
    assert record["exit_status"] == "timeout", text(done)
    assert "rank 1 is missing" in record["failure"]["message"]
    assert any(name.endswith("collectives.json") for name in stage.everything())


@two_ranks
def test_ranks_agree(stage: Stage) -> None:
    done = stage.command(*RUN, "gpu_workloads.py::Ranks", "--aorta-config=fault=none")

    (found,) = metrics(stage)
    assert set(stage.statuses().values()) == {"ok"}, text(done)
    assert found["backend"] == ("nccl" if HAS_GPU else "gloo")


# Collectors, and the whole way


def collected(stage: Stage, name: str, *options: str, **variables: str) -> list[dict[str, Any]]:
    words = ["--aorta-command=python train.py", f"--aorta-collect={name}", *options]
    stage.command(*RUN, *words, env=variables)
    return [each["collected"][name] for each in stage.trials().values()]


@one_gpu
def test_numerics_names_the_first_tensor_that_is_not_finite(stage: Stage) -> None:
    (found,) = collected(stage, "numerics", NAN="1")

    assert "first non-finite tensor" in found["sentence"]


@one_gpu
def test_divergence_names_the_step_at_which_a_trial_differs(stage: Stage) -> None:
    words = ["--aorta-command=python train.py", "--aorta-collect=divergence", "--aorta-trials=3"]
    shown = text(stage.command(*RUN, *words, env={"DIVERGE": "1"}))

    assert "1 of 3 trials differ from the 2 others" in shown
    assert "trial 1: first in step 3" in shown


@one_gpu
@pytest.mark.parametrize("name", ["profile", "memory"])
def test_profile_and_memory_have_a_sentence(stage: Stage, name: str) -> None:
    (found,) = collected(stage, name)

    assert found["problems"] == []
    assert found["data"]


@only_gpu
def test_health_of_the_device_is_recorded_beside_a_trial_under_load(stage: Stage) -> None:
    device = GPUS[0]
    stage.command(*RUN, "gpu_workloads.py::Uses", f"--aorta-devices={device}", "--aorta-config=seconds=20")

    (record,) = stage.trials().values()
    ((_, part),) = record["health"]["devices"].items()
    moved = {name for name, (low, high) in part["gauges"].items() if high > low}
    assert any("temperature" in name or "power" in name for name in moved), part
    assert any("mhz" in name for name in part["gauges"]), part


@only_gpu
@pytest.mark.skipif("AORTA_GPU_POWER_CAP" not in os.environ, reason="AORTA_GPU_POWER_CAP=1 lets it set a power cap")
def test_power_cap_shows_as_throttling(stage: Stage, request: pytest.FixtureRequest) -> None:
    device = GPUS[0]

    def ask(what: str) -> float:
        words = ["nvidia-smi", f"--id={device}", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
        return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    def cap(watts: float) -> Callable[[], object]:
        return lambda: subprocess.run(["nvidia-smi", f"--id={device}", f"--power-limit={watts}"], check=True)

    request.addfinalizer(cap(ask("power.limit")))
    cap(ask("power.min_limit"))()
    stage.command(*RUN, "gpu_workloads.py::Uses", f"--aorta-devices={device}", "--aorta-config=seconds=20")

    (record,) = stage.trials().values()
    ((_, part),) = record["health"]["devices"].items()
    assert any("power" in reason for reason in part["throttled"]), part


@one_gpu
def test_try_says_which_device_a_script_uses(stage: Stage) -> None:
    shown = text(stage.command("pytest-aorta", "try", "--time=40", "--", "python", "train.py"))

    assert "It did not fail" in shown
    assert ("no GPU" in shown) != HAS_GPU


@one_gpu
def test_check_has_a_row_for_each_device(stage: Stage) -> None:
    result = stage.command("pytest-aorta", "check", "--minutes=1", "--json")

    found = json.loads(str(result.stdout))
    names = [each["name"] for each in found["hosts"][0]["devices"]]
    if HAS_GPU:
        assert names == [*(f"GPU {device}" for device in GPUS), "together"]
    wrong = [reason for each in found["hosts"][0]["devices"] for reason in each["reasons"] if "slower" not in reason]
    assert wrong == [], text(result)
    assert not any(each["problem"] for each in found["hosts"][0]["devices"])
