"""Small programs in which one rank is at fault: that one is named, under every launcher, or none.

``python -m benchmarks.rank_corpus`` runs them more often, and beside busy loops.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.rank_corpus import CORPUS, LAUNCHERS, BadTruth, Runs, details, grade, obstacle, programs, read_program

#: One of each kind that ends soon: an exception that a main catches, a signal, a wait, none.
SAMPLE = ("catch_print_exit", "segmentation_fault", "skipped_all_reduce", "warns_but_done")


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path, trials=1)


@pytest.mark.slow
def test_no_rank_of_the_sample_is_named_wrongly(runs: Runs) -> None:
    judged = [each for program in programs(SAMPLE) for each in runs.judge(program, "nproc")]

    assert [each.program for each in judged if each.grade != "right"] == [], details(judged)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_no_innocent_rank_of_the_corpus_is_convicted(runs: Runs, launcher: str) -> None:
    if (reason := obstacle(launcher)) is not None:
        pytest.skip(reason)
    judged = [
        each
        for program in programs()
        if launcher not in program.truth.elsewhere
        for each in runs.judge(program, launcher)
    ]

    counts = {name: sum(each.grade == name for each in judged) for name in ("right", "wrong", "wrong and certain")}
    assert counts["wrong and certain"] == 0, details(judged)
    assert counts["wrong"] <= 0.02 * len(judged), details(judged)
    assert counts["right"] >= 0.85 * len(judged), details(judged)


def test_each_program_says_what_is_true_of_it() -> None:
    found = programs()

    assert len(found) >= 40
    assert {path.stem for path in CORPUS.iterdir() if path.name != "__pycache__"} == {each.name for each in found}
    assert {name for each in found for name in each.truth.elsewhere} <= LAUNCHERS.keys()
    assert all(2 <= each.truth.ranks <= 4 for each in found)
    assert {each.about for each in found if each.truth.status == {"ok"} and each.truth.guilty} == set()


@pytest.mark.parametrize(
    ("docstring", "complaint"),
    [
        ("", "the docstring is a paragraph and lines"),
        ("A fault.\n\nranks: 2\nguilty: 1\nstatus: timeout\ncolour: red", "the docstring is a paragraph and lines"),
        ("A fault.\n\nranks: 2\nstatus: timeout", "no guilty"),
        ("A fault.\n\nranks: 2\nguilty: 2\nstatus: timeout\nkind: timeout\nsays: x", "has 2 ranks"),
        ("A fault.\n\nranks: 2\nguilty:  \nstatus: timeout", "guilty is a list of ranks"),
        ("A fault.\n\nranks: 2\nguilty: 1\nstatus: timeout\nkind: timeout", "nothing to say"),
    ],
)
def test_a_truth_in_another_form_is_refused(tmp_path: Path, docstring: str, complaint: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(f'"""{docstring}\n"""\n')

    with pytest.raises(BadTruth, match=complaint):
        read_program(path)


def record(named: int | None, *, confidence: str = "likely", status: str = "workload_failed", **more: Any) -> Any:
    failure = {"rank": named, "kind": "exception", "message": "rank 1: corrupt batch 17", "confidence": confidence}
    ranks = [{"rank": rank, "blame": "cause" if rank == named else None} for rank in range(3)]
    return {"exit_status": status, "failure": None if status == "ok" else {**failure, **more}, "ranks": ranks}


@pytest.mark.parametrize(
    ("program", "found", "expected"),
    [
        ("corrupt_batch", record(1), "right"),
        ("corrupt_batch", record(None, confidence="unknown"), "unknown"),
        ("corrupt_batch", record(0), "wrong"),
        ("corrupt_batch", record(0, confidence="certain"), "wrong and certain"),
        ("corrupt_batch", record(1, status="timeout"), "wrong"),
        ("corrupt_batch", record(None, status="ok"), "wrong"),
        ("nan_for_all", record(None, confidence="unknown"), "right"),
        ("nan_for_all", record(2), "wrong"),
        ("catch_raise_from_none", record(None, confidence="unknown"), "right"),
        ("warns_but_done", record(None, status="ok"), "right"),
        ("warns_but_done", record(1), "wrong"),
    ],
)
def test_a_record_is_graded_by_the_rank_that_it_names(program: str, found: Any, expected: str) -> None:
    assert grade(programs([program])[0], "nproc", found).grade == expected


def test_what_a_right_record_does_not_say_is_told() -> None:
    [program] = programs(["corrupt_batch"])

    assert grade(program, "nproc", record(1)).why == ""
    assert "kind signal, not exception" in grade(program, "nproc", record(1, kind="signal")).why
    assert "does not say 'corrupt batch 17'" in grade(program, "nproc", record(1, message="rank 1: died")).why


def test_a_record_that_blames_another_rank_than_it_names_contradicts_itself() -> None:
    found = record(None) | {"ranks": [{"rank": 0, "blame": "collateral"}, {"rank": 1, "blame": "cause"}]}

    assert grade(programs(["corrupt_batch"])[0], "nproc", found).contradiction == "names no rank, but blames rank 1"
