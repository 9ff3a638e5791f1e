"""From a target to a workload's class, and to what the parent has to know of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.trials import loading
from pytest_aorta.trials.loading import WorkloadLoadError, data_files, describe, file_digest, load_class

WORKLOAD = """
class Plain:
    def setup(self): ...
    def run(self): ...

class Outer:
    class Inner(Plain): ...

class NoRun:
    def setup(self): ...

class Neither: ...

def function(): ...
"""


@pytest.fixture(autouse=True)
def search_path_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a file puts its folder on ``sys.path``."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def test_a_file_is_loaded_once_by_its_path_and_finds_its_neighbours(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"neighbour_{folder}_of_{tmp_path.name}.py").write_text(f"WHERE = {folder!r}")
        text = f"from neighbour_{folder}_of_{tmp_path.name} import WHERE\n{WORKLOAD}"
        (tmp_path / folder / "my workload-1.py").write_text(text)  # which nothing can import by name
    targets = [f"{tmp_path}/{folder}/my workload-1.py:Plain" for folder in ("a", "b")]

    modules = [sys.modules[load_class(target).__module__] for target in targets]

    assert [module.WHERE for module in modules] == ["a", "b"]
    assert [f"{module.__file__}:Plain" for module in modules] == targets
    assert load_class(targets[0]) is load_class(targets[0])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Missing", r"shape.py has no 'Missing'$"),
        ("Outer.Missing", r"shape.py has no 'Outer.Missing'$"),
        ("function", r"shape.py:function is a function, not a class$"),
        ("NoRun", r"shape.py:NoRun is no workload: it has no run\(\)$"),
        ("Neither", r"shape.py:Neither is no workload: it has no setup and no run\(\)$"),
    ],
)
def test_what_is_no_workload_is_refused_with_the_reason(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "shape.py").write_text(WORKLOAD)

    with pytest.raises(WorkloadLoadError, match=message):
        load_class(f"{tmp_path}/shape.py:{name}")


def test_what_an_import_raises_comes_out_and_the_next_attempt_tries_again(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("raise SystemExit('not today')")
    with pytest.raises(SystemExit, match="not today"):
        load_class(f"{file}:Plain")

    file.write_text(WORKLOAD)

    assert load_class(f"{file}:Plain")


def test_a_description_says_what_the_parent_needs(tmp_path: Path) -> None:
    file = tmp_path / "described.py"
    file.write_text(
        WORKLOAD
        + """
class Ranks(Plain):
    launch_mode = "distributed"
    min_world_size = 4
    timeout_sec = 30.0
    default_config = {"size": 2}
"""
    )
    common: dict[str, Any] = {
        **{"source": str(file), "source_root": str(tmp_path.resolve()), "data_files": {}, "config_error": None},
        **{"startup_variables": {}, "requires_process": False, "result_scope": "global"},
    }
    plain = describe(load_class(f"{file}:Plain"), {}, None)
    assert plain.pop("sources")["described.py"] == file_digest(file)
    declared = {"launch_mode": "single_process", "min_world_size": 1, "timeout_sec": None}
    assert plain == {**common, **declared, "config": {}, "config_warnings": []}
    ranks = describe(load_class(f"{file}:Ranks"), {"size": "3"}, 5)
    del ranks["sources"]
    declared = {"launch_mode": "distributed", "min_world_size": 4, "timeout_sec": 30.0}
    warning = "Ranks.default_config has no option 'steps' (known: size); it may have no effect"
    assert ranks == {**common, **declared, "config": {"size": 3, "steps": 5}, "config_warnings": [warning]}

    wrong = describe(load_class("aorta_workloads.gemm:Gemm"), {"no_such_option": "1"}, None)
    assert wrong["config_error"].startswith("Gemm has no option 'no_such_option'; valid: ")
    assert wrong["config"] == {}


# Which files decide what a workload does, and the digests that tell whether one has changed.

SCRIPT = """
import json, sys
from pytest_aorta.trials.loading import describe, imported_later, load_class
cls = load_class(sys.argv[1])
known = describe(cls, {}, None)["sources"]
for name in sys.argv[2:]:
    __import__(name)
print(json.dumps([dict(sorted(known.items())), sorted(imported_later(cls, None, known))]))
"""


def found_in_a_new_process(target: str, *later: str, path: list[Path]) -> Any:
    """Paths of the sources, and of those of modules that are imported ``later``."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-B", "-c", SCRIPT, target, *later]
    return json.loads(subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout)


def test_all_that_is_not_installed_is_a_source_and_what_is_imported_later_is_told_apart(tmp_path: Path) -> None:
    work, library, installed = (tmp_path / name for name in ("work", "library", "site-packages"))
    compiled, below = tmp_path / "torchinductor_me", work / "venv" / "site-packages"
    names = ("work/beside", "work/late", "library/shared", "site-packages/bought", "site-packages/bought_later")
    files = [*(tmp_path / f"{name}.py" for name in names), compiled / "kernel.py", below / "beside_work.py"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (work / "main.py").write_text(f"import beside, bought, json, shared\n{WORKLOAD}")
    target = f"{work}/main.py:Plain"
    later = ("late", "bought_later", "kernel", "beside_work", "decimal", "pytest_aorta.api")
    known, found_later = found_in_a_new_process(target, *later, path=[library, installed, compiled, below])
    assert list(known) == sorted([str(library / "shared.py"), "beside.py", "main.py"])
    assert found_later == ["late.py"]

    (work / "beside.py").write_text("# changed")
    (work / "unrelated.py").touch()
    now, _ = found_in_a_new_process(target, path=[library, installed])
    assert {path for path in known if known[path] != now[path]} == {"beside.py"}


def test_a_workload_that_is_installed_itself_has_its_package_for_sources(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "offered"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "main.py").write_text(f"import bought\n{WORKLOAD}")
    (tmp_path / "site-packages" / "bought.py").touch()
    (tmp_path / "site-packages" / "alone.py").write_text(f"import bought\n{WORKLOAD}")
    path = [tmp_path / "site-packages"]
    assert list(found_in_a_new_process("offered.main:Plain", path=path)[0]) == ["__init__.py", "main.py"]
    assert list(found_in_a_new_process("alone:Plain", path=path)[0]) == [str(tmp_path / "site-packages" / "alone.py")]


def test_a_digest_is_that_of_the_content_of_a_file_or_of_all_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "deep" / "data.bin"
    assert file_digest(file) is None
    file.parent.mkdir()
    file.write_bytes(b"1234")
    first = file_digest(file), file_digest(tmp_path)
    os.utime(file, (0, 0))
    os.mkfifo(tmp_path / "pipe")  # which nothing is to be read from
    assert (file_digest(file), file_digest(tmp_path)) == first
    assert file_digest(tmp_path / "pipe") is None
    (tmp_path / "deep" / "empty").touch()
    assert file_digest(tmp_path) != first[1]
    file.write_bytes(b"1235")
    assert file_digest(file) != first[0]

    monkeypatch.setattr(loading, "READ_AT_MOST", 3)
    os.utime(file, ns=(5, 5))
    assert file_digest(file) == "4 bytes of 5"
    folder = file_digest(tmp_path)
    os.utime(file, ns=(6, 6))
    assert file_digest(tmp_path) != folder


def test_declared_files_are_looked_for_where_the_workload_opens_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, beside = tmp_path / "here", tmp_path / "beside"
    for folder in (here, beside):
        folder.mkdir()
    monkeypatch.chdir(here)
    (beside / "golden.pt").write_text("beside")
    (beside / "declares.py").write_text(
        f"{WORKLOAD}\nclass Listed(Plain): data_files = ['golden.pt', 'no.pt']\nclass Wrong(Plain): data_files = [1]\n"
        "class ByOption(Plain): data_files = classmethod(lambda cls, config: config['data'])\n"
    )
    listed, by_option, wrong = (load_class(f"{beside}/declares.py:{name}") for name in ("Listed", "ByOption", "Wrong"))

    assert data_files(listed, {}) == {"golden.pt": file_digest(beside / "golden.pt"), "no.pt": None}
    (here / "golden.pt").write_text("here")
    assert data_files(listed, {})["golden.pt"] == file_digest(here / "golden.pt")
    path = str(beside / "golden.pt")
    assert data_files(by_option, {"data": path}) == {path: file_digest(beside / "golden.pt")}
    with pytest.raises(TypeError, match=r"data_files of Wrong is \[1\]; expected a list of paths, or a"):
        data_files(wrong, {})
