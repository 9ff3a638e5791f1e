"""``pytest-aorta check`` on this machine, whose cores are its devices, and with faults planted in them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.devices import names_devices
from support.stage import Stage

pytestmark = names_devices

two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="compares two cores")

#: Products of float32 as libtorch calls them: on one core they come with a wrong bit, on another one late.
FAULTY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

typedef void Product(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                     const int *, const float *, const int *, const float *, float *, const int *);

void sgemm_(const char *ta, const char *tb, const int *m, const int *n, const int *k, const float *alpha,
            const float *a, const int *lda, const float *b, const int *ldb, const float *beta, float *c,
            const int *ldc)
{
    static Product *product;
    if (!product)
        product = (Product *)dlsym(dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD), "sgemm_");
    product(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    cpu_set_t mine;
    sched_getaffinity(0, sizeof mine, &mine);
    if (CPU_COUNT(&mine) > 1)
        return;
    while (CPU_ISSET(STUCK, &mine))
        sleep(1);
    if (CPU_ISSET(WRONG, &mine))
        ((unsigned *)c)[0] ^= 1u << BIT;
    if (CPU_ISSET(SLOW, &mine) && (long)*m * *n * *k >= 1l << 23) {
        struct timespec late = {0, 200000000};
        nanosleep(&late, 0);
    }
}
"""


#: No core has this number.
NONE = 1023


def faulty_library(folder: Path, *, wrong: int = NONE, bit: int = 20, slow: int = NONE, stuck: int = NONE) -> Path:
    """A library to preload; skips without a compiler, or where torch does not call such products by this name."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc builds the library that plants the faults")
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("this torch does not call MKL, whose products the library replaces")
    source, library = folder / "faulty.c", folder / "faulty.so"
    source.write_text(FAULTY)
    defined = [f"-DWRONG={wrong}", f"-DBIT={bit}", f"-DSLOW={slow}", f"-DSTUCK={stuck}"]
    subprocess.run(["gcc", "-shared", "-fPIC", *defined, "-o", library, source, "-ldl"], check=True)
    return library


def checked(stage: Stage, *arguments: str, minutes: float = 0.01, **variables: str) -> tuple[int, dict[str, Any]]:
    result = stage.command("pytest-aorta", "check", f"--minutes={minutes}", "--json", *arguments, env=variables)
    found: dict[str, Any] = json.loads(str(result.stdout))
    return int(result.ret), found


def devices_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (host,) = found["hosts"]
    return {device["name"]: device for device in host["devices"]}


@pytest.mark.slow
def test_each_core_is_a_device_and_a_sound_machine_computes_right(stage: Stage) -> None:
    status, found = checked(stage)

    devices = devices_of(found)
    together = devices.pop("together")
    assert len(devices) == len({tuple(siblings(cpu)) for cpu in os.sched_getaffinity(0)})
    assert all((each["trials"], each["failed"]) == (12, 0) for each in devices.values())
    assert (together["trials"], together["failed"]) == (4, 0)
    # Whatever else runs here may take the time of one core, and of it alone.
    reasons = [reason for each in (*devices.values(), together) for reason in each["reasons"]]
    assert all("slower" in reason for reason in reasons)
    assert status == (0 if not reasons else 1)
    assert found["fit"] == (not reasons)
    # Its trials are ordinary ones.
    folder = f"check/{found['hosts'][0]['name']}"
    core = next(iter(devices)).replace(" ", "_")
    assert f"{folder}/{core}/gemm/trial_2.json" in stage.files()
    assert f"{folder}/together/checkpoint/trial_0.json" in stage.files()


def siblings(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


@pytest.mark.slow
@two_cores
def test_core_that_computes_wrongly_and_slow_core_are_named(stage: Stage) -> None:
    slow, wrong = sorted(os.sched_getaffinity(0))[:2]

    library = faulty_library(stage.path, wrong=wrong, slow=slow)
    # Long enough for steps of which the median is not that of another program's.
    status, found = checked(stage, "--only=gemm", minutes=0.5, LD_PRELOAD=str(library))

    assert (status, found["fit"]) == (1, False)
    devices = devices_of(found)
    assert any(
        reason.startswith("gemm: wrong_product") and reason.endswith("3 of 3 trials")
        for reason in devices[f"core {wrong}"]["reasons"]
    )
    assert [reason for reason in devices[f"core {slow}"]["reasons"] if "slower" not in reason] == []
    assert any("slower" in reason for reason in devices[f"core {slow}"]["reasons"])
    assert not any("slower" in reason for reason in devices[f"core {wrong}"]["reasons"])


@pytest.mark.slow
@two_cores
def test_last_bit_that_only_another_core_can_show_is_found(stage: Stage) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]

    library = faulty_library(stage.path, wrong=second, bit=0)
    status, found = checked(stage, "--only=attention", LD_PRELOAD=str(library))

    assert status == 1
    for core in (first, second):
        assert any("other bits than the other one" in reason for reason in devices_of(found)[f"core {core}"]["reasons"])


@pytest.mark.slow
def test_another_host_is_checked_there_and_one_that_cannot_be_reached_is_named(stage: Stage) -> None:
    result = stage.command(
        "pytest-aorta", "check", "--minutes=0.01", "--only=dataloader", "--hosts=popen//id=near,popen//python=/nowhere"
    )

    assert result.ret == 1
    text = str(result.stdout)
    assert "popen//python=/nowhere: not checked: " in text
    result.stdout.fnmatch_lines(["Host *Device *Trials *Failed *Verdict", "popen//id=near *together *1 *0 *"])
    assert "Not fit: " in text


#: The check itself, whose patience with a trial is shorter.
IMPATIENT = """
import pytest_aorta.cli.check as checks
from pytest_aorta.cli.main import main

checks._PATIENCE = 30
main()
"""


@pytest.mark.slow
@two_cores
def test_core_that_hangs_is_named_and_costs_one_deadline(stage: Stage) -> None:
    sound, stuck = sorted(os.sched_getaffinity(0))[:2]
    library = faulty_library(stage.path, stuck=stuck)

    words = ["check", "--json", "--minutes=0.01", "--only=gemm,copies"]
    result = stage.command(sys.executable, "-c", IMPATIENT, *words, env={"LD_PRELOAD": str(library)})

    devices = devices_of(json.loads(str(result.stdout)))
    assert devices[f"core {sound}"]["failed"] == 0
    assert devices[f"core {sound}"]["trials"] == 6
    (reason,) = devices[f"core {stuck}"]["reasons"]
    assert "gemm: 1 trial lost: the deadline of 33 s passed in setup(); _product() at gemm.py" in reason
    outcomes = [trial["exit_status"] for path, trial in stage.trials().items() if f"core_{stuck}" in path]
    assert outcomes == ["timeout", "infrastructure_failed", "infrastructure_failed"]


#: Stands in for a host with two GPUs: their numbers are leased as if they were, and the workloads compute on the CPU.
TWO_GPUS = """
import pytest_aorta.cli.check as checks
from pytest_aorta.cli.main import main

survey = checks.survey
checks.survey = lambda: {**survey(), "vendor": "nvidia", "devices": [0, 1]}
main()
"""


@pytest.mark.slow
def test_each_gpu_is_leased_for_its_own_trials_and_all_for_ranks(stage: Stage) -> None:
    words = ["check", "--json", "--minutes=0.01", "--only=determinism,allreduce"]
    result = stage.command(sys.executable, "-c", TWO_GPUS, *words)

    devices = devices_of(json.loads(str(result.stdout)))
    assert {name: each["trials"] for name, each in devices.items()} == {"GPU 0": 3, "GPU 1": 3, "together": 1}
    assert not any(each["failed"] or each["problem"] for each in devices.values())
    leased = {path.split("/")[2]: trial["imposed"]["devices"] for path, trial in stage.trials().items()}
    assert leased == {"GPU_0": [0], "GPU_1": [1], "together": [0, 1]}


@pytest.mark.slow
def test_interruption_is_no_answer_and_leaves_nothing_running(stage: Stage) -> None:
    process = stage.start_command("pytest-aorta", "check", "--only=copies")
    stage.wait_until(stage.files)  # others run now

    stage.press_ctrl_c(process)

    assert process.returncode == 130
    stage.wait_until_alone()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--minutes=0"], "Invalid value for '--minutes': 0.0 is not in the range"),
        (["--hosts=a,,b"], "--hosts 'a,,b': expected names of hosts, separated by commas"),
        (["--hosts=popen//x"], "'x' is unknown or of no use here"),
        (["--only=gem"], "--only gem: expected of gemm, attention, copies"),
        (["gpu"], "Got unexpected extra argument (gpu)"),
        (["--results-dir=/proc/nowhere"], "--results-dir /proc/nowhere: cannot write there"),
    ],
)
def test_wrong_use_is_refused_with_exit_status_4(stage: Stage, arguments: list[str], said: str) -> None:
    result = stage.aorta("check", *arguments)

    assert result.ret == 4
    assert said in str(result.stderr)
