"""The mitigations that come with the package, what those for CPUs do to a real torch, and how names are looked up."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from pytest_aorta.registry import (
    BUILTIN_MITIGATIONS,
    Environment,
    Mitigation,
    Registry,
    UnknownMitigationError,
    mitigation_from,
)

X86 = platform.machine() in ("x86_64", "AMD64")
GLIBC = platform.libc_ver()[0] == "glibc"


def seen_by_a_process_with(mitigation: str, code: str, **ambient: str) -> str:
    """What ``code`` prints in an interpreter that was started with the mitigation's variables."""
    controlled = {variable for built_in in BUILTIN_MITIGATIONS for variable in built_in.env}
    environ = {variable: value for variable, value in os.environ.items() if variable not in controlled}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environ, **ambient, **Registry.load().mitigation(mitigation).env},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_builtin_mitigations_meet_the_rules_for_plugins_and_are_all_different() -> None:
    registry = Registry.load()

    for each in BUILTIN_MITIGATIONS:
        checked = mitigation_from(each.env, name=each.name, source_package="pytest-aorta", where=each.name)
        assert registry.mitigation(each.name) == checked
    assert [each.name for each in BUILTIN_MITIGATIONS if not each.env] == ["none"]
    assert [each.name for each in BUILTIN_MITIGATIONS if not each.read_by] == ["none"]
    assert len({tuple(sorted(each.env.items())) for each in BUILTIN_MITIGATIONS}) == len(BUILTIN_MITIGATIONS)


@pytest.mark.slow
def test_omp_1_makes_torch_single_threaded_whatever_the_host_exports() -> None:
    code = "import torch; print(torch.get_num_threads())"

    assert seen_by_a_process_with("omp_1", code, OMP_NUM_THREADS="2", MKL_NUM_THREADS="2") == "1\n"


@pytest.mark.slow
@pytest.mark.skipif(not X86, reason="instruction sets and kernels of x86 processors")
def test_what_torch_computes_with_obeys() -> None:
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    assert seen_by_a_process_with("aten_cpu_default", code) == "DEFAULT\n"

    code = "import torch; torch.nn.functional.conv2d(torch.ones(2, 8, 33, 33), torch.ones(16, 8, 3, 3))"
    said = seen_by_a_process_with("onednn_isa_sse41", code, ONEDNN_VERBOSE="1")
    assert "isa:Intel SSE4.1" in said
    assert "avx" not in said

    code = "import torch; print(torch.backends.mkl.is_available()); torch.ones(64, 64) @ torch.ones(64, 64)"
    said = seen_by_a_process_with("mkl_cbwr_compatible", code, MKL_VERBOSE="1")
    if "True" in said:
        assert "CNR:COMPATIBLE" in said


@pytest.mark.skipif(not GLIBC, reason="variables of glibc")
def test_fresh_memory_is_filled_and_larger_blocks_get_a_mapping_of_their_own() -> None:
    c = "import ctypes; c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p; word = ctypes.c_size_t\n"
    code = c + "print(ctypes.string_at(c.malloc(word(5000)), 5000) == b'\\x5a' * 5000)"
    assert seen_by_a_process_with("malloc_perturb", code) == "True\n"
    assert seen_by_a_process_with("none", code) == "False\n"

    # glibc keeps the size of a block in the word before it, and there the bit for "this block is a mapping". The first
    # blocks may still fit into what the heap has left, so one block alone says nothing.
    code = (
        f"{c}blocks = [c.malloc(word(20_000)) for _ in range(60)]\n"
        "print(sum(word.from_address(block - ctypes.sizeof(word)).value >> 1 & 1 for block in blocks))"
    )
    assert int(seen_by_a_process_with("mmap_always", code)) > 30
    assert int(seen_by_a_process_with("none", code)) == 0


def test_the_kind_of_an_environment_is_the_outermost_thing_it_asks_for() -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"docker": "image", "venv": "/v", "rocm": "7.0"}, "docker"),
        ({"venv": "/v", "rocm": "7.0"}, "venv"),
        ({"rocm": "7.0"}, "rocm"),
        ({}, "local"),
    ]
    for fields, kind in cases:
        assert Environment("x", source_package="here", **fields).kind == kind  # type: ignore[arg-type]


def test_the_values_of_variables_do_not_show_in_representations() -> None:
    secret = {"TOKEN": "hunter2"}

    assert "hunter2" not in repr(Mitigation("m", secret, "here"))
    assert "hunter2" not in repr(Environment("e", env=secret, source_package="here"))


def test_a_variable_is_a_mitigation_of_its_own_name() -> None:
    registry = Registry.load()
    assert dict(registry.mitigation("OMP_NUM_THREADS=1").env) == {"OMP_NUM_THREADS": "1"}
    assert dict(registry.mitigation("A=").env) == {"A": ""}
    for wrong in ("1A=2", "=2", "A=\0", "A=\n"):
        with pytest.raises(UnknownMitigationError):
            registry.mitigation(wrong)


def test_a_typo_gets_a_suggestion_whatever_its_case() -> None:
    with pytest.raises(UnknownMitigationError, match=r"did you mean 'tf32_off'\?"):
        Registry.load().mitigation("TF32-OFF")
