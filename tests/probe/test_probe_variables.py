"""Which variables of a trial's environment are recorded, and which never are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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

#: The last one has all that a job of SLURM was given.
SECRETS_OF_FAMILIES = """
SLURM_JWT TORCH_HUB_TOKEN GPU_CLOUD_SECRET AMD_API_KEY AMD_APIKEY NCCL_token TORCHINDUCTOR_REDIS_PASSWORD UCX_DB_PASS
ROCM_AUTH CUDA_MIRROR_CREDENTIALS TRITON_ACCESSTOKEN TORCH_API_TOKEN NCCL_SECRET GPU_PASSWORD HSA_passwd UCX_PRIVATE_KEY
CUDA_PRIVATE ROCM_ACCESS_KEY MIOPEN_Credential SLURM_EXPORT_ENV
"""


def test_only_known_variables_that_are_no_secrets_are_recorded() -> None:
    known = dict.fromkeys(KNOWN.split(), "1")
    others = dict.fromkeys((UNKNOWN + " " + OTHER_WORDS + SECRETS_OF_FAMILIES).split(), CANARY)
    assert recorded_variables({**others, **known}) == known


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        (f"redis://user:{CANARY}@cache:6379/0", REDACTED),
        (f"redis://:{CANARY}@cache", REDACTED),
        (f"verbose,HF_TOKEN={CANARY}", REDACTED),
        (f'{{"api_key": "{CANARY}"}}', REDACTED),
        ("max_split_size_mb:128,expandable_segments:True", None),
        ("/opt/keys:/opt/token:/usr/lib", None),
        ("https://example.org/index.html", None),
        ("granularity=fine,compact,1,0", None),
        pytest.param("a" * 100_000, None, id="long"),
        (os.fsdecode(b"/opt/\xff"), "/opt/\\udcff"),
    ],
)
def test_a_value_is_recorded_unless_it_holds_a_secret(value: str, recorded: str | None) -> None:
    assert recorded_variables({"TORCH_OPTION": value}) == {"TORCH_OPTION": value if recorded is None else recorded}


def test_a_variable_of_the_overlay_is_recorded_whatever_family_it_is_of_and_a_secret_without_its_value() -> None:
    environ = {"MY_SWITCH": "on", "MAGIC_TOKEN": CANARY, "CACHE": f"redis://:{CANARY}@cache"}
    recorded = {"CACHE": REDACTED, "MAGIC_TOKEN": REDACTED, "MY_SWITCH": "on"}
    assert recorded_variables({**environ, "OTHER": "x"}, list(environ)) == recorded


def test_a_command_line_is_redacted_by_the_same_rules() -> None:
    cases: list[tuple[str, str]] = [
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
    ]
    for line, recorded in cases:
        assert redacted_command_line(line) == recorded


def test_the_rule_and_the_life_of_a_trial_are_without_pydantic_and_torch() -> None:
    code = (
        "import sys, pytest_aorta.trials.lifecycle, pytest_aorta.probe.variables as v\n"
        "v.recorded_variables({'RANK': '0'}); print([m for m in ('pydantic', 'torch', 'psutil') if m in sys.modules])"
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
