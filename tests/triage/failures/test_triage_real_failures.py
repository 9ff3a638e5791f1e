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
OF_RANKS = (
    *EXPECTED[:10],
    "mat1 and mat2 shapes cannot be multiplied (# and #) (failing_workloads.py:N in raises_in_torch)",
)

SLOW = pytest.mark.slow
LONG = (pytest.mark.slow, pytest.mark.long)


@pytest.mark.parametrize(
    ("workload", "expected", "options"),
    [
        pytest.param("Failing", EXPECTED, ("--aorta-slots", "4", "--aorta-timeout", "3"), id="fork"),
        pytest.param(
            "Failing", EXPECTED, ("--aorta-isolation", "spawn", "--aorta-timeout", "8"), marks=LONG, id="spawn"
        ),
        pytest.param("Failing", EXPECTED[:4], ("--aorta-isolation", "none"), marks=SLOW, id="pytest's own process"),
        pytest.param("FailingRanks", OF_RANKS, ("--aorta-timeout", "25", "--aorta-slots", "2"), marks=LONG, id="ranks"),
        pytest.param(
            "FailingRanks",
            EXPECTED[:5],
            ("--aorta-launcher", "torchrun", "--aorta-slots", "2"),
            marks=LONG,
            id="torchrun",
        ),
    ],
)
def test_two_trials_with_the_same_fault_have_the_same_signature(
    stage: Stage, workload: str, expected: tuple[str, ...], options: tuple[str, ...]
) -> None:
    for name in ("failing_workloads.py", "failing_checks.py"):
        stage.copy(HERE / name)
    trials = range(2 * len(expected))
    options = ("--aorta-trials", str(len(trials)), "-o", "aorta_grace=0.5", *options)
    assert stage.run(f"failing_workloads.py::{workload}", *options).ret == pytest.ExitCode.TESTS_FAILED
    found = [signature_of(stage.trial(f"{workload}/trial_{index}.json")) for index in trials]
    assert found[::2] == found[1::2]
    texts = [
        re.sub(r"\.py:\d+", ".py:N", each.text).removesuffix(" of a rank") for each in found[::2] if each is not None
    ]
    assert texts == [*expected]
