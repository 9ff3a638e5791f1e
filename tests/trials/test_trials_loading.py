"""From a target to a workload's class, and to what the parent has to know of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_aorta.trials.loading import WorkloadLoadError, describe, load_class, source_file, sources

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


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ``shapes_<test>`` of a workload and its helper, importable."""
    folder = tmp_path / f"shapes_{tmp_path.name}"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "deep" / "__init__.py").write_text("")
    (folder / "deep" / "helper.py").write_text("VALUE = 1\n")
    (folder / "square.py").write_text(f"from {folder.name}.deep.helper import VALUE\n{WORKLOAD}")
    (folder / "unrelated.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def digest_in_a_new_process(target: str, *, path: Path) -> str:
    """The digests as a zygote computes them."""
    script = (
        "import sys; from pytest_aorta.trials.loading import load_class; "
        "from pytest_aorta.trials.loading import sources; "
        "print(sources(load_class(sys.argv[1])))"
    )
    command = [sys.executable, "-B", "-c", script, target]
    return subprocess.run(command, cwd=path, capture_output=True, text=True, check=True).stdout


def test_a_class_of_a_file_that_nothing_can_import(tmp_path: Path) -> None:
    file = tmp_path / "my workload-1.py"
    file.write_text(WORKLOAD)

    cls = load_class(f"{file}:Plain")

    assert cls.__name__ == "Plain"
    assert source_file(cls) == str(file)


def test_a_file_is_loaded_once(tmp_path: Path) -> None:
    file = tmp_path / "once.py"
    file.write_text(WORKLOAD)

    assert load_class(f"{file}:Plain") is load_class(f"{file}:Plain")


def test_files_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "work.py").write_text(f"WHERE = {folder!r}\n{WORKLOAD}")

    modules = [sys.modules[load_class(f"{tmp_path}/{folder}/work.py:Plain").__module__] for folder in ("a", "b")]

    assert [module.WHERE for module in modules] == ["a", "b"]


def test_a_file_finds_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / f"neighbour_of_{tmp_path.name}.py").write_text("VALUE = 5\n")
    (tmp_path / "main.py").write_text(f"from neighbour_of_{tmp_path.name} import VALUE\n{WORKLOAD}")

    assert load_class(f"{tmp_path}/main.py:Plain")


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


def test_the_digest_is_that_of_the_source_and_not_of_the_process(package: Path) -> None:
    target = f"{package.name}.square:Plain"

    assert digest_in_a_new_process(target, path=package.parent) == digest_in_a_new_process(target, path=package.parent)


@pytest.mark.parametrize("changed", ["square.py", "deep/helper.py", "__init__.py"])
def test_the_digest_changes_with_every_module_of_the_package_that_the_workload_imports(
    package: Path, changed: str
) -> None:
    target = f"{package.name}.square:Plain"
    before = digest_in_a_new_process(target, path=package.parent)

    with (package / changed).open("a") as file:
        file.write("# changed\n")

    assert digest_in_a_new_process(target, path=package.parent) != before


def test_the_digest_does_not_change_with_a_module_that_the_workload_does_not_import(package: Path) -> None:
    target = f"{package.name}.square:Plain"
    before = digest_in_a_new_process(target, path=package.parent)

    (package / "unrelated.py").write_text("# changed\n")

    assert digest_in_a_new_process(target, path=package.parent) == before


def test_the_digest_of_a_file_changes_with_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("VALUE = 5\n")
    (tmp_path / "main.py").write_text(f"import neighbour\n{WORKLOAD}")
    before = digest_in_a_new_process(f"{tmp_path}/main.py:Plain", path=tmp_path)

    (tmp_path / "neighbour.py").write_text("VALUE = 6\n")

    assert digest_in_a_new_process(f"{tmp_path}/main.py:Plain", path=tmp_path) != before


def test_a_description_says_what_the_parent_needs(tmp_path: Path) -> None:
    (tmp_path / "described.py").write_text(
        WORKLOAD
        + """
class Ranks(Plain):
    launch_mode = "distributed"
    min_world_size = 4
    timeout_sec = 30.0
    default_config = {"size": 2}
"""
    )
    plain, ranks = (load_class(f"{tmp_path}/described.py:{name}") for name in ("Plain", "Ranks"))

    assert describe(plain, {}, None) == {
        "launch_mode": "single_process",
        "min_world_size": 1,
        "timeout_sec": None,
        "result_scope": "global",
        "source": f"{tmp_path}/described.py",
        "source_root": str(tmp_path.resolve()),
        "sources": sources(plain),
        "data_files": {},
        "config": {},
        "config_error": None,
        "config_warnings": [],
        "startup_variables": {},
        "requires_process": False,
    }
    assert describe(ranks, {"size": "3"}, 5) == {
        "launch_mode": "distributed",
        "min_world_size": 4,
        "timeout_sec": 30.0,
        "result_scope": "global",
        "source": f"{tmp_path}/described.py",
        "source_root": str(tmp_path.resolve()),
        "sources": sources(ranks),
        "data_files": {},
        "config": {"size": 3, "steps": 5},
        "config_error": None,
        "config_warnings": [
            "Ranks.default_config has no option 'steps' (known: size); it may have no effect",
        ],
        "startup_variables": {},
        "requires_process": False,
    }


def test_a_description_carries_what_is_wrong_with_the_options() -> None:
    described = describe(load_class("aorta_workloads.gemm:Gemm"), {"no_such_option": "1"}, None)

    assert described["config_error"].startswith("Gemm has no option 'no_such_option'; valid: ")
    assert described["config"] == {}
