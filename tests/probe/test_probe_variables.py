"""Which variables of a trial's environment are recorded, and which never are."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pytest_aorta.probe.collect import collect_env, collect_static
from pytest_aorta.probe.variables import REDACTED, other_variables, recorded_variables, redacted_command_line

CANARY = "canary-9f3b"


#: Of families, or known by name.
KNOWN = """
CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HSA_XNACK ROC_ENABLE_PRE_VEGA GPU_MAX_HW_QUEUES
AMD_SERIALIZE_KERNEL NCCL_DEBUG TORCH_BLAS_PREFER_HIPBLASLT TORCHINDUCTOR_MAX_AUTOTUNE TRITON_DUMP_PASS_STAGES
TORCH_TOKENIZERS_PARALLELISM NCCL_KEYED_RINGS FI_PROVIDER_PATH OMP_NUM_THREADS SLURM_JOB_ID FI_PROVIDER RANK WORLD_SIZE
MASTER_ADDR DISABLE_TF32 NVIDIA_TF32_OVERRIDE LD_PRELOAD
"""

UNKNOWN = "HOME PATH USER HF_TOKEN WANDB_API_KEY AWS_SECRET_ACCESS_KEY SSH_AUTH_SOCK NVIDIA_API_KEY"

#: They begin as the word of a family does.
OTHER_WORDS = "ROCKET_API GPUCLOUD_ID AMDAHL TORCHX FILE_X ranks cuda_home RANKING"

SECRETS_OF_FAMILIES = """
SLURM_JWT TORCH_HUB_TOKEN GPU_CLOUD_SECRET AMD_API_KEY AMD_APIKEY NCCL_token TORCHINDUCTOR_REDIS_PASSWORD UCX_DB_PASS
ROCM_AUTH CUDA_MIRROR_CREDENTIALS TRITON_ACCESSTOKEN TORCH_API_TOKEN NCCL_SECRET GPU_PASSWORD HSA_passwd UCX_PRIVATE_KEY
CUDA_PRIVATE ROCM_ACCESS_KEY MIOPEN_Credential
"""


def test_known_variables_are_recorded() -> None:
    environ = dict.fromkeys(KNOWN.split(), "1")
    assert recorded_variables(environ) == environ


@pytest.mark.parametrize("names", [UNKNOWN, OTHER_WORDS, SECRETS_OF_FAMILIES])
def test_what_is_unknown_or_a_secret_is_not_recorded(names: str) -> None:
    assert recorded_variables(dict.fromkeys(names.split(), CANARY)) == {}


def test_the_export_list_of_a_slurm_job_is_never_recorded() -> None:
    assert recorded_variables({"SLURM_EXPORT_ENV": f"ALL,HF_TOKEN={CANARY}"}) == {}


@pytest.mark.parametrize(
    "value",
    [
        f"redis://user:{CANARY}@cache:6379/0",
        f"redis://:{CANARY}@cache",
        f"verbose,HF_TOKEN={CANARY}",
        f'{{"api_key": "{CANARY}"}}',
    ],
)
def test_a_secret_inside_a_harmless_variable_is_redacted(value: str) -> None:
    assert recorded_variables({"TORCH_REMOTE_CACHE": value}) == {"TORCH_REMOTE_CACHE": REDACTED}


@pytest.mark.parametrize(
    "value",
    [
        "max_split_size_mb:128,expandable_segments:True",
        "/opt/keys:/opt/token:/usr/lib",
        "https://example.org/index.html",
        "granularity=fine,compact,1,0",
        pytest.param("a" * 100_000, id="long"),
    ],
)
def test_a_harmless_value_is_recorded_as_it_is(value: str) -> None:
    assert recorded_variables({"PYTORCH_CUDA_ALLOC_CONF": value}) == {"PYTORCH_CUDA_ALLOC_CONF": value}


def test_a_variable_of_the_overlay_is_recorded_whatever_family_it_is_of() -> None:
    assert recorded_variables({"MY_SWITCH": "on", "OTHER": "x"}, ["MY_SWITCH"]) == {"MY_SWITCH": "on"}


def test_a_secret_of_the_overlay_is_recorded_without_its_value() -> None:
    environ = {"MAGIC_TOKEN": CANARY, "CACHE": f"redis://:{CANARY}@cache"}
    assert recorded_variables(environ, list(environ)) == {"CACHE": REDACTED, "MAGIC_TOKEN": REDACTED}


def test_bytes_that_are_not_utf8_are_recorded_as_text_that_is() -> None:
    recorded = recorded_variables({"ROCM_PATH": os.fsdecode(b"/opt/\xff")})
    assert recorded == {"ROCM_PATH": "/opt/\\udcff"}
    json.dumps(recorded, ensure_ascii=False).encode("utf-8")


def test_no_value_of_an_unrecorded_variable_is_anywhere_in_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "SLURM_JWT",
        "ROCKET_X",
        "KUBERNETES_SERVICE_HOST",
        "VIRTUAL_ENV",
    ):
        monkeypatch.setenv(name, CANARY)
    monkeypatch.setenv("TORCH_CACHE", f"redis://u:{CANARY}@host")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    snapshot = collect_env(collect_static())
    assert snapshot.env_vars["NCCL_DEBUG"] == "INFO"
    assert CANARY not in json.dumps(snapshot.to_dict())


@pytest.mark.parametrize(
    ("line", "recorded"),
    [
        ("root=/dev/sda1 ro mitigations=off", "root=/dev/sda1 ro mitigations=off"),
        ("random.trust_cpu=1 --auth-required", "random.trust_cpu=1 --auth-required"),
        (f"rd.api-key={CANARY} quiet", "rd.api-key=<redacted> quiet"),
        (f"systemd.setenv=HF_TOKEN={CANARY}", "systemd.setenv=<redacted>"),
        (f"netroot=iscsi://user:{CANARY}@host/disk", "netroot=<redacted>"),
        (f"-- --token {CANARY} --port 5", "-- --token <redacted> --port 5"),
        (f'ds="nocloud;password={CANARY} two" quiet', "ds=<redacted> quiet"),
        (f'install.password="{CANARY} and more', "install.password=<redacted>"),
        (f"https://{CANARY}@host/answers", "<redacted>"),
        ("", ""),
    ],
)
def test_a_command_line_is_redacted_by_the_same_rules(line: str, recorded: str) -> None:
    assert redacted_command_line(line) == recorded


def test_the_rule_can_be_had_without_pydantic_or_torch() -> None:
    code = (
        "import sys, pytest_aorta.probe, pytest_aorta.probe.variables as v; v.recorded_variables({'RANK': '0'});"
        "print([m for m in ('pydantic', 'torch', 'psutil') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_of_other_variables_a_change_is_seen_and_no_value() -> None:
    before = other_variables({"A": CANARY, "B": "1", "C": "1"}, ["C"])
    after = other_variables({"A": f"{CANARY}2", "B": "1"}, [])
    assert before["of"] == after["of"]
    assert {name: digest == after["digests"][name] for name, digest in before["digests"].items()} == {
        "A": False,
        "B": True,
    }
    assert CANARY not in str(before)
    assert before["digests"]["B"] != other_variables({"D": "1"}, [])["digests"]["D"]  # equal values show in no way
