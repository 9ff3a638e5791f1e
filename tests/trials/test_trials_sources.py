"""Which files decide what a workload does, and the digests that tell whether one has changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.trials import loading as sources_module
from pytest_aorta.trials.loading import data_files, file_digest, load_class

WORKLOAD = """
class Plain:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self): pass
"""

SCRIPT = """
import json, sys
from pytest_aorta.trials.loading import load_class
from pytest_aorta.trials.loading import imported_later, sources
cls = load_class(sys.argv[1])
known = sources(cls)
for name in sys.argv[2:]:
    __import__(name)
print(json.dumps([sorted(known), sorted(imported_later(cls, None, known))]))
"""


def found_in_a_new_process(target: str, *later: str, path: list[Path]) -> Any:
    """Paths of the sources, and of those of modules that are imported ``later``."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-B", "-c", SCRIPT, target, *later]
    return json.loads(subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout)


def test_all_that_is_not_installed_is_a_source(tmp_path: Path) -> None:
    work, library, installed = (tmp_path / name for name in ("work", "library", "site-packages"))
    for folder in (work, library, installed):
        folder.mkdir()
    (work / "beside.py").touch()
    (library / "shared.py").touch()
    (installed / "bought.py").touch()
    (work / "main.py").write_text(f"import beside, bought, json, shared\n{WORKLOAD}")
    known, later = found_in_a_new_process(f"{work}/main.py:Plain", path=[library, installed])
    assert known == sorted([str(library / "shared.py"), "beside.py", "main.py"])
    assert later == []


def test_what_is_imported_later_is_told_apart(tmp_path: Path) -> None:
    work, installed = tmp_path / "work", tmp_path / "site-packages"
    work.mkdir()
    (installed / "torchinductor_me").mkdir(parents=True)
    for file in (work / "late.py", installed / "bought.py"):
        file.touch()
    (work / "main.py").write_text(WORKLOAD)
    names = ("late", "bought", "decimal", "pytest_aorta.api")
    assert found_in_a_new_process(f"{work}/main.py:Plain", *names, path=[installed]) == [["main.py"], ["late.py"]]


def test_a_workload_that_is_installed_itself_has_its_package_for_sources(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "offered"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "main.py").write_text(f"import bought\n{WORKLOAD}")
    (tmp_path / "site-packages" / "bought.py").touch()
    (tmp_path / "site-packages" / "alone.py").write_text(f"import bought\n{WORKLOAD}")
    path = [tmp_path / "site-packages"]
    assert found_in_a_new_process("offered.main:Plain", path=path)[0] == ["__init__.py", "main.py"]
    assert found_in_a_new_process("alone:Plain", path=path)[0] == [str(tmp_path / "site-packages" / "alone.py")]


def test_a_digest_is_that_of_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "data.bin"
    assert file_digest(file) is None
    file.write_bytes(b"1234")
    first = file_digest(file)
    os.utime(file, (0, 0))
    assert file_digest(file) == first
    file.write_bytes(b"1235")
    assert file_digest(file) != first
    monkeypatch.setattr(sources_module, "READ_AT_MOST", 3)
    os.utime(file, ns=(5, 5))
    assert file_digest(file) == "4 bytes of 5"


def test_a_folder_has_the_digest_of_all_that_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_text("1")
    first = file_digest(tmp_path)
    (tmp_path / "deep" / "b").write_text("")
    assert file_digest(tmp_path) != first
    (tmp_path / "deep" / "b").unlink()
    assert file_digest(tmp_path) == first
    os.mkfifo(tmp_path / "pipe")  # which nothing is to be read from
    assert file_digest(tmp_path) == first
    assert file_digest(tmp_path / "pipe") is None
    monkeypatch.setattr(sources_module, "READ_AT_MOST", 0)
    os.utime(tmp_path / "deep" / "a", ns=(5, 5))
    first = file_digest(tmp_path)
    os.utime(tmp_path / "deep" / "a", ns=(6, 6))
    assert file_digest(tmp_path) != first


def declaring(folder: Path, declaration: str) -> type[Any]:
    (folder / "declares.py").write_text(f"{WORKLOAD}    {declaration}\n")
    return load_class(f"{folder}/declares.py:Plain")


def test_declared_files_are_looked_for_where_the_workload_opens_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, beside = tmp_path / "here", tmp_path / "beside"
    for folder in (here, beside):
        folder.mkdir()
    monkeypatch.chdir(here)
    (beside / "golden.pt").write_text("beside")
    cls = declaring(beside, 'data_files = ["golden.pt", "no.pt"]')
    assert data_files(cls, {}) == {"golden.pt": file_digest(beside / "golden.pt"), "no.pt": None}
    (here / "golden.pt").write_text("here")
    assert data_files(cls, {})["golden.pt"] == file_digest(here / "golden.pt")


def test_declared_files_may_depend_on_the_options(tmp_path: Path) -> None:
    (tmp_path / "a.pt").touch()
    cls = declaring(tmp_path, "data_files = classmethod(lambda cls, config: config['data'])")
    assert data_files(cls, {"data": str(tmp_path / "a.pt")}) == {str(tmp_path / "a.pt"): file_digest(tmp_path / "a.pt")}


def test_what_is_no_list_of_paths_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"data_files of Plain is \[1\]; expected a list of paths, or a class method"):
        data_files(declaring(tmp_path, "data_files = [1]"), {})
