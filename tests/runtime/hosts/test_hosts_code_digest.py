"""Digests of source files, and what is said about a difference."""

from __future__ import annotations

from pathlib import Path

import pytest

import pytest_aorta
from pytest_aorta.runtime.hosts.code_digest import code_identity, first_difference, locate, package_files


def test_a_package_is_all_its_source_files_by_name() -> None:
    files = package_files("pytest_aorta")

    assert files["pytest_aorta/__init__.py"] == Path(pytest_aorta.__file__)
    assert files["pytest_aorta/runtime/hosts/code_digest.py"].is_file()
    assert {path.suffix for path in files.values()} == {".py"}


@pytest.mark.parametrize("name", ["no_such_package_at_all", "types"])
def test_what_is_no_installed_package_has_no_files(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=name):
        package_files(name)


def test_names_of_a_package_lead_back_to_its_files() -> None:
    files = package_files("pytest_aorta")

    assert locate(files) == files


def test_an_absolute_path_leads_to_itself_and_an_absent_package_nowhere() -> None:
    assert locate(["/somewhere/workload.py", "no_such_package/module.py"]) == {
        "/somewhere/workload.py": Path("/somewhere/workload.py")
    }


def test_a_file_that_does_not_exist_has_no_digest(tmp_path: Path) -> None:
    there = tmp_path / "there.py"
    there.write_text("x = 1\n")

    identity = code_identity({str(there): there, "absent.py": tmp_path / "absent.py"})

    assert list(identity) == [str(there)]
    assert len(identity[str(there)]) == 64


def test_equal_code_has_no_difference() -> None:
    assert first_difference({"a.py": "1", "b.py": "2"}, {"b.py": "2", "a.py": "1"}) is None


def test_the_first_file_that_differs_is_named() -> None:
    difference = first_difference({"a.py": "1", "b.py": "2", "c.py": "3"}, {"a.py": "1", "b.py": "x", "c.py": "y"})

    assert difference == "b.py differs from the one here"


def test_a_file_that_is_missing_is_named_with_the_side_where_it_is() -> None:
    assert first_difference({"a.py": "1"}, {}) == "a.py is missing there"
    assert first_difference({}, {"a.py": "1"}) == "a.py is there, but missing here"
