"""What names a variable: among the files of a process, with a cache, within a time, and not beyond what was seen."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.probe import named_variables as module
from pytest_aorta.probe.collect import collect_end, collect_static
from pytest_aorta.probe.guard import Facts
from pytest_aorta.probe.named_variables import SearchCache, Watch, cache_key, named_variables, open_cache
from pytest_aorta.probe.process import children_now, had_children_since

#: Put together, because this file is an imported source as well.
NAME = "_".join(["READ", "BY", "A", "SOURCE"])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pytest-aorta" / "variable-names"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to import from; what was imported is forgotten afterwards."""
    before = set(sys.modules)
    folder = tmp_path / "sources"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


def settled(search: Callable[[], Facts]) -> Facts:
    """What a search finds in the end: on a loaded machine, or in a torch for CUDA, the first one may be out of time."""
    for _ in range(20):
        found = search()
        if "longer than" not in found.get("note", ""):
            break
    return found


def searched(*names: str) -> Facts:
    return settled(lambda: named_variables(names))


def in_a_fresh_process(code: str, **variables: str) -> Any:
    """What ``code`` prints, as JSON."""
    setup = """
import json, os, sys
from pytest_aorta.probe.collect import collect_end, collect_static
from pytest_aorta.probe.named_variables import Watch
def named(static, *names):
    for _ in range(20):
        found = collect_end(static, watch=Watch.begin(names)).to_dict()["variables"]
        if "longer than" not in found.get("note", ""):
            break
    return found
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    done = subprocess.run([sys.executable, "-c", setup + code], env=environ, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_libraries_and_sources_are_named() -> None:
    code = "import torch\nprint(json.dumps(named(collect_static(), 'OMP_NUM_THREADS', 'DISABLE_TF32', 'LD_DEBUG')))"
    found = in_a_fresh_process(code)
    assert found["by"]["DISABLE_TF32"] == {"count": 0, "first": []}
    threads = found["by"]["OMP_NUM_THREADS"]
    assert threads["count"] >= len(threads["first"]) > 1
    assert any(label.startswith("libgomp") for label in threads["first"])
    assert found["by"]["LD_DEBUG"]["count"] > 0
    assert found["subprocesses"] is False
    assert found.keys() == {"by", "subprocesses"}


def test_a_source_that_was_imported_later_is_searched_as_well(sources: Path) -> None:
    (sources / "reads_it.py").write_text(f"import os\nVALUE = os.environ.get('{NAME}')\n")
    static = collect_static()
    assert look(static, NAME)["by"][NAME]["count"] == 0
    importlib.import_module("reads_it")
    assert look(static, NAME)["by"][NAME] == {"count": 1, "first": ["reads_it"]}
    assert look(collect_static(), NAME)["by"][NAME] == {"count": 1, "first": ["reads_it"]}


def look(static: Any, *names: str) -> Facts:
    """What a trial records that ends now."""

    def at_the_end() -> Facts:
        end = collect_end(static, watch=Watch.begin(names))
        assert end.partial_reasons == []
        assert end.variables is not None
        return end.variables

    return settled(at_the_end)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_a_library_that_was_loaded_later_is_searched_as_well(tmp_path: Path) -> None:
    source = tmp_path / "lib.c"
    source.write_text('#include <stdlib.h>\nconst char *get(void) { return getenv("READ_BY_A_LIBRARY"); }\n')
    library = tmp_path / "libreads.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    code = f"""
import ctypes
static = collect_static()
before = named(static, "READ_BY_A_LIBRARY")
ctypes.CDLL({str(library)!r})
loaded = named(static, "READ_BY_A_LIBRARY")
os.unlink({str(library)!r})
print(json.dumps([before, loaded, named(static, "READ_BY_A_LIBRARY", "NOT_READ")]))
"""
    before, loaded, removed = in_a_fresh_process(code)
    assert before["by"]["READ_BY_A_LIBRARY"]["count"] == 0
    assert loaded["by"]["READ_BY_A_LIBRARY"] == {"count": 1, "first": ["libreads.so"]}
    assert removed["unsearched"] == ["libreads.so"]


def test_our_own_sources_do_not_count() -> None:
    """They list what others read."""
    found = searched("NVIDIA_TF32_OVERRIDE", "HSA_NO_SCRATCH_RECLAIM")
    ours = {label for named in found["by"].values() for label in named["first"] if label.startswith("pytest_aorta")}
    assert ours == set()


def test_a_lazy_module_is_not_loaded(sources: Path) -> None:
    (sources / "later.py").write_text(f"import sys; sys.loaded = '{NAME}'")
    spec = importlib.util.find_spec("later")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sys.modules["later"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["later"])
    assert searched(NAME)["by"][NAME]["first"] == ["later"]
    assert not hasattr(sys, "loaded")


def test_a_source_that_has_gone_is_not_claimed_to_name_nothing(sources: Path) -> None:
    (sources / "gone.py").write_text("")
    importlib.import_module("gone")
    (sources / "gone.py").unlink()
    assert "gone" in searched("ANY")["unsearched"]  # as may be what torch has removed, after other tests


def test_what_was_found_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    static = collect_static()
    first = look(static, "OMP_NUM_THREADS", "NOT_READ")
    monkeypatch.setattr(module, "names_in_object", lambda *arguments: pytest.fail("searched again"))
    monkeypatch.setattr(module, "names_in_source", lambda *arguments: pytest.fail("searched again"))
    assert look(static, "NOT_READ", "OMP_NUM_THREADS") == first
    assert cache.stat().st_mode & 0o077 == 0


def test_another_name_is_searched_for_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the objects that are worth keeping an answer for."""
    monkeypatch.setattr(module, "_WORTH_KEEPING", -1.0)
    searched("FIRST_NAME")
    asked: set[str] = set()

    def search(path: str, names: list[str], deadline: object) -> set[str]:
        asked.update(names)
        return set()

    monkeypatch.setattr(module, "names_in_object", search)
    searched("FIRST_NAME", "SECOND_NAME")
    assert asked == {"SECOND_NAME"}


def test_a_damaged_answer_is_made_again(cache: Path) -> None:
    static = collect_static()
    first = look(static, "OMP_NUM_THREADS")
    for number, file in enumerate(sorted(cache.iterdir())):
        file.write_text(["{", "[]", '{"OMP_NUM_THREADS": 3}', "\xff"][number % 4], encoding="latin-1")
    assert look(static, "OMP_NUM_THREADS") == first


def test_without_a_place_for_answers_nothing_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second search would take as long as the first."""
    file = tmp_path / "a file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    monkeypatch.setattr("pytest_aorta.probe.named_variables._SHARED", file)
    found = look(collect_static(), "ANY")
    assert found == {
        "note": "not searched: there is no folder to keep the answers in; XDG_CACHE_HOME may name one",
        "subprocesses": False,
    }


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_aorta.probe.named_variables._SHARED", tmp_path)
    folder = tmp_path / "cache" / "pytest-aorta" / "variable-names"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    opened = open_cache()
    assert opened is not None
    opened.write("key", {"NAME": ["label"]})
    assert list(folder.iterdir()) == []
    assert opened.read("key") == {"NAME": ["label"]}


def test_the_cache_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_aorta.probe.named_variables._MOST", 10)
    small = SearchCache(tmp_path)
    for number in range(100):
        small.write(cache_key(number), {"NAME": [str(number)]})
        os.utime(tmp_path / cache_key(number), ns=(number, number))
    assert len(list(tmp_path.iterdir())) <= 10
    assert small.read(cache_key(99)) == {"NAME": ["99"]}
    assert small.read(cache_key(0)) is None


def test_a_search_that_takes_too_long_says_so_and_goes_on_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORTH_KEEPING", -1.0)
    assert named_variables(["OMP_NUM_THREADS"], seconds=-1.0) == {
        "note": "not searched: it would have taken longer than -1.0 s"
    }
    assert "by" in searched("OMP_NUM_THREADS")


@pytest.mark.parametrize(
    ("timeout", "stall", "spent", "seconds"),
    [(None, None, 5.0, 3.0), (600.0, None, 5.0, 3.0), (10.0, None, 8.0, 0.5), (600.0, 2.0, 5.0, 0.5)],
)
def test_a_search_leaves_time_until_the_deadline(
    timeout: float | None, stall: float | None, spent: float, seconds: float
) -> None:
    watch = Watch.begin(["ANY"])
    watch.limit(timeout, stall, spent)
    assert watch.seconds == seconds


def test_other_programs_are_noticed() -> None:
    before = children_now()
    assert not had_children_since(before)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert had_children_since(before)
    now = children_now()
    assert not had_children_since(now)
    process.communicate()
    assert had_children_since(now)
    assert had_children_since(before)


def test_nothing_is_recorded_or_written_without_variables(cache: Path) -> None:
    end = collect_end(collect_static())
    assert end.variables is None
    assert "variables" not in end.to_dict()
    assert not cache.exists()
