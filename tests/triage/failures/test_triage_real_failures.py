"""Signatures of trials that have failed for real: the same for the same fault, however the trial was started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.stage import Stage

from pytest_aorta.triage.signatures import signature_of

HERE = Path(__file__).parent

#: The text of each way to fail, without the numbers of lines.
EXPECTED = (
    "loss is nan in process # (failing_workloads.py:N in raises)",
    "nan at # (failing_checks.py:N in check_finite, from failing_workloads.py:N in raises_in_a_helper)",
    "JSONDecodeError: Expecting value: line # column # (char #) (failing_workloads.py:N in raises_in_a_library)",
    "FileNotFoundError: [Errno #] No such file or directory: '<path>' "
    "(failing_workloads.py:N in raises_while_handling) "
    "after KeyError: 'BIAS' (failing_workloads.py:N in raises_while_handling)",
    "SIGSEGV in string_at (failing_workloads.py:N in segfaults)",
    "SIGABRT: # is no size (failing_workloads.py:N in aborts)",
    "SIGKILL in run()",
    "exit code 3 in run()",
    "sys.exit(4) (failing_workloads.py:N in calls_sys_exit)",
    "timeout (failing_workloads.py:N in hangs)",
    "differs_from_reference, operation matmul",
)


def texts(stage: Stage, workload: str, ways: int, *options: str) -> list[str]:
    """The signature of each way to fail, each seen in two trials."""
    for name in ("failing_workloads.py", "failing_checks.py"):
        stage.copy(HERE / name)
    options = ("--aorta-trials", str(2 * ways), "-o", "aorta_grace=0.5", *options)
    result = stage.run(f"failing_workloads.py::{workload}", *options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    found = [signature_of(stage.trial(f"{workload}/trial_{index}.json")) for index in range(2 * ways)]
    assert found[::2] == found[1::2]
    return [re.sub(r"\.py:\d+", ".py:N", each.text) for each in found[::2] if each is not None]


def test_two_trials_with_the_same_fault_have_the_same_signature(stage: Stage) -> None:
    assert texts(stage, "Failing", len(EXPECTED), "--aorta-slots", "4", "--aorta-timeout", "3") == list(EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(("--aorta-isolation", "spawn"), marks=pytest.mark.long, id="spawn"),
        pytest.param(("-n", "2"), marks=pytest.mark.long, id="xdist"),
        pytest.param((), marks=pytest.mark.long, id="fork"),
    ],
)
def test_it_does_not_matter_how_a_trial_is_started(stage: Stage, mode: tuple[str, ...]) -> None:
    assert texts(stage, "Failing", len(EXPECTED), "--aorta-timeout", "8", *mode) == list(EXPECTED)


@pytest.mark.slow
def test_an_exception_looks_the_same_in_pytests_own_process(stage: Stage) -> None:
    assert texts(stage, "Failing", 4, "--aorta-isolation", "none") == list(EXPECTED[:4])


@pytest.mark.slow
@pytest.mark.long
def test_it_does_not_matter_which_rank_fails(stage: Stage) -> None:
    found = texts(stage, "FailingRanks", 11, "--aorta-timeout", "25", "--aorta-slots", "2")
    in_torch = "mat1 and mat2 shapes cannot be multiplied (# and #) (failing_workloads.py:N in raises_in_torch)"
    assert [text.removesuffix(" of a rank") for text in found] == [*EXPECTED[:10], in_torch]


@pytest.mark.slow
@pytest.mark.long
def test_it_does_not_matter_what_starts_the_ranks(stage: Stage) -> None:
    found = texts(stage, "FailingRanks", 5, "--aorta-launcher", "torchrun", "--aorta-slots", "2")
    assert found == list(EXPECTED[:5])
