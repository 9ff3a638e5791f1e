"""Where a trial's file lies: inside the results directory and nowhere else, and never where another one's lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_aorta.workspace.paths import HISTORY, folder_of_test, trial_paths

HOSTILE = [
    *("", ".", "..", "../x", "/etc/passwd", "a/../../b", "~root", HISTORY, "nul\0", "two\nlines", "it's", '"quoted"'),
    *("🔥", "größe", "caf\udce9", "\ud800", "-rf", "a b", "a\\b", "C:\\x", "CON", "x" * 10_000, "é" * 300),
]
any_text = st.text(alphabet=st.characters(codec=None), max_size=20)
names = any_text | st.sampled_from(HOSTILE) | st.text(alphabet="/.\0\n'x-", max_size=8)
places = st.tuples(names, st.none() | names, st.integers(0, 10**6))

RESULTS = Path("/data/results")


@given(places, st.integers(0, 100))
@example(("..", "..", 0), 1)
def test_every_path_lies_inside_the_results_directory_and_outside_its_history(
    where: tuple[str, str | None, int], rank: int
) -> None:
    made = trial_paths(*where)

    for path in (made.file_in(RESULTS), made.folder_in(RESULTS), made.folder_in(RESULTS, rank)):
        assert os.path.normpath(path) == str(path)
        assert path.parts[: len(RESULTS.parts)] == RESULTS.parts
        relative = path.relative_to(RESULTS)
        assert len(relative.parts) == (2 if where[1] is None else 3)
        assert relative.parts[0] != HISTORY
        assert all(part.isascii() and part.isprintable() and len(part) <= 200 for part in relative.parts)


@given(places, places, st.integers(0, 20), st.integers(0, 20))
@example(("a/b", None, 0), ("a_b", None, 0), 0, 0)
@example(("a", "b", 0), ("a/b", None, 0), 0, 0)
@example(("a", None, 1), ("a", None, 11), 0, 0)
@example(("a", "", 0), ("a", None, 0), 0, 0)
def test_different_trials_have_different_files_and_folders(
    left: tuple[str, str | None, int], right: tuple[str, str | None, int], one: int, two: int
) -> None:
    first, second = trial_paths(*left), trial_paths(*right)

    folder, other = first.folder_in(RESULTS, one), second.folder_in(RESULTS, two)
    assert (first.file == second.file) is (left == right)
    assert (folder == other) is ((left, one) == (right, two))
    assert first.file_in(RESULTS) != other


@pytest.mark.parametrize(
    ("node_id", "folder"),
    [
        ("test_it.py::test_one", "test_it.py@test_one"),
        ("tests/unit/test_it.py::TestIt::test_one[1-a]", "tests.unit.test_it.py@TestIt.test_one@1-a"),
        ("test_it.py::test_all[local-tf32_off+xnack-0]", "test_it.py@test_all@local-tf32_off+xnack-0"),
    ],
)
def test_the_folder_of_a_test_reads_like_its_node_id(node_id: str, folder: str) -> None:
    assert folder_of_test(node_id) == folder


node_ids = st.text(alphabet="ab./:@[]-_~ \u00e9", max_size=12) | st.builds(
    lambda folders, names, parameters: "/".join([*folders, "t.py"]) + "::" + "::".join(names) + parameters,
    st.lists(st.sampled_from(["a", "b.c", "d", ".e"]), max_size=3),
    st.lists(st.sampled_from(["f", "g", "\u00e9"]), min_size=1, max_size=2),
    st.sampled_from(["", "[]", "[a]", "[a-b]", "[a.b]", "[a/b]", "[a@b]", "[" + "x" * 300 + "]"]),
)


@given(node_ids, node_ids)
@example("a/b.py::c", "a.b.py::c")
@example("b.py::c::d", "b.py::c.d")
@example("b.py::c[d]", "b.py::c@d")
@example("b.py::c[d]", "b.py::c::d")
@example("b.py::c[" + "x" * 300 + "]", "b.py::c[" + "x" * 301 + "]")
def test_no_two_tests_share_a_folder_and_none_has_a_workload_s(left: str, right: str) -> None:
    one, two = folder_of_test(left), folder_of_test(right)

    assert (one == two) is (left == right)
    assert one.isascii()
    assert one.isprintable()
    assert not set(one) & set("/\\ :[]")
    assert one[0] not in ".-"
    assert len(one) <= 200
    assert one not in (trial_paths(right, None, 0).file.parts[0], trial_paths(two, None, 0).file.parts[0])
