"""Two runs are compared cell by cell, with the statistics of the table, and so are their environments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.environments import env
from support.results import write_cell

from pytest_aorta.settings import RequestError
from pytest_aorta.triage.compare import CellChange, RunComparison, compare_runs
from pytest_aorta.triage.rates import arms, difference_interval, difference_p, holm


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return tmp_path / "a"


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return tmp_path / "b"


def by_cell(comparison: RunComparison) -> dict[str, CellChange]:
    return {change.label: change for change in comparison.cells}


def test_every_kind_of_change(a: Path, b: Path) -> None:
    cells = {
        "worse": ("." * 18 + "FF", "F" * 14 + "." * 6),
        "better": ("F" * 14 + "." * 6, "." * 20),
        "same": ("F." * 200, "F." * 200),
        "few": ("FFF.....", "........"),
        "never": ("F" * 10, "-" * 10),
    }
    for place, (name, (before, after)) in enumerate(cells.items()):
        write_cell(a, before, mitigations=name, place=place)
        write_cell(b, after, mitigations=name, place=place)
    changes = compare_runs(a, b).cells

    assert [(change.b.key.cell, change.kind) for change in changes] == [
        ("local-worse", "worse"),
        ("local-better", "better"),
        ("local-same", "no change"),
        ("local-few", "undecided"),
        ("local-never", "not compared"),
    ]
    p = [
        difference_p(14, 20, 2, 20),
        difference_p(0, 20, 14, 20),
        difference_p(10, 400, 10, 400),
        difference_p(0, 8, 3, 8),
    ]
    assert [change.rate.p for change in changes if change.rate] == p
    assert [change.rate.p_adjusted for change in changes if change.rate] == holm(p)
    assert changes[0].rate is not None
    assert changes[0].rate.interval == difference_interval(*arms([(14, 20, 2, 20)]))
    assert changes[0].rate.difference == pytest.approx(0.6)
    assert changes[3].more_trials is None  # of several cells, so few trials may differ by chance
    assert changes[4].rate is None


def test_an_undecided_change_says_how_many_more_trials_would_decide(a: Path, b: Path) -> None:
    write_cell(a, "FFF.....", mitigations="few")
    write_cell(b, "........", mitigations="few")
    (change,) = compare_runs(a, b).cells
    assert change.more_trials is not None
    assert f"undecided, ~{change.more_trials} more" in change.verdict


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ([10.0, 10.1], [13.0, 13.1], "slower"),
        ([13.0, 13.1], [10.0, 10.1], "faster"),
        ([10.0, 10.1], [10.2, 10.4], "similar"),
        ([10.0, 10.1], [5.0, 20.0], "undecided"),
        ([], [10.0], "n/a"),
    ],
)
def test_speed_has_changed_when_the_interval_of_the_ratio_says_so(
    a: Path, b: Path, before: list[float], after: list[float], kind: str
) -> None:
    write_cell(a, "." * 8, step_ms=before)
    write_cell(b, "." * 8, step_ms=after)
    (change,) = compare_runs(a, b).cells
    assert change.speed.kind == kind
    (change,) = compare_runs(a, b, speed_margin=0.5).cells
    assert change.speed.kind == ("similar" if kind in ("slower", "faster") else kind)


def test_ways_to_fail_have_the_names_that_the_second_run_gives_them(a: Path, b: Path) -> None:
    write_cell(a, "F.S.")
    write_cell(b, "S.S.")
    matrix = {"settings": {"signatures": [["any", "loss is nan"], ["any", "SIGSEGV"]]}}
    (b / "matrix.json").write_text(json.dumps(matrix))
    (change,) = compare_runs(a, b).cells
    assert (change.new_signatures, change.gone_signatures) == ((), ())
    (b / "matrix.json").write_text("[]")
    (change,) = compare_runs(a, b).cells
    assert [(each.signature.message, len(each.trials)) for each in change.gone_signatures] == [("loss is nan", 1)]


def test_of_two_machines_with_one_environment_each_the_names_of_those_do_not_matter(a: Path, b: Path) -> None:
    for name in ("none", "x"):
        write_cell(a, "...", environment="rocm6", mitigations=name)
        write_cell(b, "...", environment="rocm7", mitigations=name)
    comparison = compare_runs(a, b)
    assert comparison.matched_across_environments
    assert list(by_cell(comparison)) == ["gemm rocm6-none -> rocm7-none", "gemm rocm6-x -> rocm7-x"]
    write_cell(a, "...", environment="rocm5")
    with pytest.raises(RequestError, match="no cell in common"):  # either of two could be meant
        compare_runs(a, b)


def test_cells_of_a_test_are_matched_wherever_its_file_is(a: Path, b: Path) -> None:
    def test(digest: str) -> dict[str, str]:
        return {"node_id": "test_it.py::test_one", "options": "X", "digest": digest}

    write_cell(a, "F...", test=test("at /home/a"))
    write_cell(b, "FF..", test=test("at /home/b"))
    comparison = compare_runs(a, b)
    assert list(by_cell(comparison)) == ["test_it.py::test_one gemm local-none X"]
    assert not comparison.matched_across_environments


def test_what_differs_around_one_cell_only_is_said_of_it(a: Path, b: Path) -> None:
    for place, name in enumerate(("none", "x")):
        write_cell(a, "...", mitigations=name, place=place)
    write_cell(b, "...", env=env(torch__version="2.13.0", env_vars__OMP_NUM_THREADS="1"))
    write_cell(b, "...", mitigations="x", place=1, env=env(torch__version="2.13.0"))
    write_cell(b, "...", mitigations="new", place=2)
    comparison = compare_runs(a, b)
    assert [cell.key.cell for cell in (*comparison.only_a, *comparison.only_b)] == ["local-new"]
    assert list(map(str, comparison.shared)) == ["torch 2.12.0 -> 2.13.0"]
    ((cells, particular),) = comparison.particular
    assert cells == ("gemm local-none",)
    assert list(map(str, particular)) == ["OMP_NUM_THREADS 8 -> 1"]


def test_an_earlier_run_of_the_same_directory_can_be_compared_with_it(a: Path) -> None:
    write_cell(a, "F...")
    write_cell(a / ".history" / "20260101", "....")
    assert [change.a.total for change in compare_runs(a / ".history" / "20260101", a).cells] == [4]


def test_a_machine_that_is_slower_everywhere_is_said_once_and_each_cell_beside_it(a: Path, b: Path) -> None:
    times = {"one": (10.0, 10.8), "two": (20.0, 21.6), "three": (5.0, 5.4), "slow": (10.0, 13.0)}
    for place, (name, (before, after)) in enumerate(times.items()):
        for folder, step_ms in ((a, before), (b, after)):
            write_cell(folder, "." * 10, mitigations=name, place=place, step_ms=(step_ms, 1.01 * step_ms))
    found = compare_runs(a, b)
    assert found.factor is not None
    assert found.factor.ratio == pytest.approx(1.08)
    assert found.factor.sentence == "steps take 8.0% longer in B in all 4 cells; each is judged beside that"
    assert {change.b.mitigations[0]: change.speed.kind for change in found.cells} == {
        **dict.fromkeys(("one", "two", "three"), "similar"),
        "slow": "slower",
    }


def test_another_way_to_fail_is_a_verdict(a: Path, b: Path) -> None:
    write_cell(a, "F" * 14 + "." * 6)
    write_cell(b, "S" * 12 + "." * 8)
    [change] = compare_runs(a, b).cells
    assert change.kind == "other failures"
    assert [(way.before, way.after) for way in change.changed_ways] == [("14/20", "0/20"), ("0/20", "12/20")]
