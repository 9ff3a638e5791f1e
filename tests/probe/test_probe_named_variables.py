"""What names a variable: which libraries and sources, within a time, kept for the next trial."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.common.cache import answers_folder
from pytest_aorta.probe import loaded as module
from pytest_aorta.probe.collect import collect_end
from pytest_aorta.probe.guard import Facts
from pytest_aorta.probe.loaded import Watch, children_now, file_identity, named_variables

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the answers: a search of all of torch takes seconds."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


def settled(search: Callable[[], Facts]) -> Facts:
    """What a search finds in the end: on a loaded machine, or in a torch for CUDA, the first one may be out of time."""
    for _ in range(20):
        found = search()
        if "longer than" not in found.get("note", ""):
            break
    return found


def in_libraries(paths: list[Path], names: set[str]) -> set[str]:
    """Those of the names that one of these libraries contains."""
    files = {str(path): (path.name, file_identity(str(path))) for path in paths}
    return set(module.search(files, sorted(names), answers_folder("variable-names") or Path(), deadline=float("inf")))


def compiled(folder: Path, source: str, *options: str) -> Path:
    (folder / "source.cpp").write_text(source)
    path = folder / f"lib{'_'.join(options).replace('-', '')}.so"
    subprocess.run(["g++", "-shared", "-fPIC", *options, str(folder / "source.cpp"), "-o", str(path)], check=True)
    return path


LIBRARY = """
#include <stdlib.h>
static const char table[][24] = {"FIRST_OF_AN_ARRAY", "LAST_OF_AN_ARRAY"};
static char writable[] = "IN_WRITABLE_DATA";
const char *array(int index) { return getenv(table[index]); }
const char *data(void) { return getenv(writable); }
const char *alone(void) { return getenv("READ_BY_NAME"); }
const char *longer(void) { return getenv("BEGINS_A_NAME_THAT_GOES_ON"); }
const char *tail(void) { return getenv("MY_READ_AS_A_TAIL"); }
const char *message(void) { return "please set IN_A_MESSAGE=1, or else"; }
const char *put_together(int which) { return which ? "ONEDNN_" : "OF_A_NAME"; }
"""
HELD = {
    *("FIRST_OF_AN_ARRAY", "LAST_OF_AN_ARRAY", "IN_WRITABLE_DATA", "READ_BY_NAME", "IN_A_MESSAGE"),
    *("READ_AS_A_TAIL", "ONEDNN_OF_A_NAME"),
}


@needs_gxx
def test_strings_are_found_wherever_a_compiler_puts_them(tmp_path: Path) -> None:
    library = compiled(tmp_path, LIBRARY, "-O2")
    assert in_libraries([library], HELD | {"NEVER_MENTIONED", "BEGINS_A_NAME", "ONEDNN_OTHER"}) == HELD


@needs_gxx
@pytest.mark.skipif(platform.machine() != "x86_64", reason="operands of x86-64")
@pytest.mark.parametrize("level", ["-O1", "-O3"])
def test_a_string_that_is_copied_by_code_is_found(tmp_path: Path, level: str) -> None:
    """At -O3, the names are operands, and vectors of 16 bytes, and none of them is there as a whole."""
    names = {"HSA_XNACK", "HSA_ENABLE_SDMA", "HSA_NO_SCRATCH_RECLAIM", "GPU_MAX_HW_QUEUES", "EXACTLY8"}
    source = "#include <cstdlib>\n#include <string>\n"
    source += "__attribute__((noinline)) const char *get(std::string name) { return getenv(name.c_str()); }\n"
    source += "".join(f'extern "C" const char *of_{name}() {{ return get("{name}"); }}\n' for name in sorted(names))
    others = {"HSA_NOT_THERE", "GPU_NOT_MENTIONED_AT_ALL"}
    library = compiled(tmp_path, source, level, "-fvisibility=hidden", "-s")
    assert in_libraries([library], names | others) == names


def in_a_fresh_process(code: str, **variables: str) -> Any:
    setup = """
import json, os, sys
from pytest_aorta.probe.collect import collect_end
from pytest_aorta.probe.loaded import Watch
def named(*names):
    for _ in range(20):
        found = collect_end(watch=Watch(names))["variables"]
        if "longer than" not in found.get("note", ""):
            break
    return found
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    done = subprocess.run([sys.executable, "-c", setup + code], env=environ, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_libraries_and_sources_are_named_and_one_that_has_gone_is_said(tmp_path: Path) -> None:
    # Our own sources list what others read, and do not count; oneDNN puts a name together at run time.
    code = f"""
import pytest_aorta.registry, torch
sys.path.insert(0, {str(tmp_path)!r})
before = named("READ_BY_A_SOURCE")
import gone, reads_it
os.unlink(gone.__file__)
read = ["OMP_NUM_THREADS", "LD_DEBUG", "MKL_NUM_THREADS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"]
unread = ["DISABLE_TF32", "MIOPEN_FIND_MODE", "HSA_NO_SCRATCH_RECLAIM"]
print(json.dumps([before, named(*read, *unread, "READ_BY_A_SOURCE")]))
"""
    (tmp_path / "gone.py").touch()
    (tmp_path / "reads_it.py").write_text("import os\nVALUE = os.environ.get('READ_BY_A_SOURCE')\n")
    before, found = in_a_fresh_process(code)
    assert before["by"]["READ_BY_A_SOURCE"]["count"] == 0
    assert found["by"]["READ_BY_A_SOURCE"] == {"count": 1, "first": ["reads_it"]}
    unread = {name for name, by in found["by"].items() if by["count"] == 0}
    assert unread == {"DISABLE_TF32", "MIOPEN_FIND_MODE", "HSA_NO_SCRATCH_RECLAIM"}
    threads = found["by"]["OMP_NUM_THREADS"]
    assert threads["count"] >= len(threads["first"]) > 1
    assert any(label.startswith("libgomp") for label in threads["first"])
    assert (found["subprocesses"], found["unsearched"]) == (False, ["gone"])


def look(*names: str) -> Facts:
    """What a trial records that ends now."""

    def at_the_end() -> Facts:
        end = collect_end(watch=Watch(names))
        assert end["partial_reasons"] == []
        variables: Facts = end["variables"]
        return variables

    return settled(at_the_end)


@needs_gxx
def test_a_library_that_was_loaded_later_is_searched_as_well(tmp_path: Path) -> None:
    source = '#include <stdlib.h>\nconst char *get(void) { return getenv("READ_BY_A_LIBRARY"); }\n'
    library = compiled(tmp_path, source, "-O2")
    code = f"""
import ctypes
before = named("READ_BY_A_LIBRARY")
ctypes.CDLL({str(library)!r})
loaded = named("READ_BY_A_LIBRARY")
os.unlink({str(library)!r})
print(json.dumps([before, loaded, named("READ_BY_A_LIBRARY", "NOT_READ")]))
"""
    before, loaded, removed = in_a_fresh_process(code)
    assert before["by"]["READ_BY_A_LIBRARY"]["count"] == 0
    assert loaded["by"]["READ_BY_A_LIBRARY"] == {"count": 1, "first": [library.name]}
    assert removed["unsearched"] == [library.name]


def test_what_was_found_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first = look("OMP_NUM_THREADS", "NOT_READ")
    monkeypatch.setattr(module, "_holds", lambda *arguments: pytest.fail("searched again"))
    assert look("NOT_READ", "OMP_NUM_THREADS") == first


def test_without_a_place_for_answers_nothing_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second search would take as long as the first."""
    file = tmp_path / "a file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert look("ANY") == {
        "note": "not searched: there is no folder to keep the answers in; XDG_CACHE_HOME may name one",
        "subprocesses": False,
    }


def test_a_search_that_takes_too_long_says_so_and_goes_on_the_next_time() -> None:
    assert named_variables(["NOT_ASKED_FOR_YET"], seconds=-1.0) == {
        "note": "not searched: it would have taken longer than -1.0 s"
    }
    assert "by" in settled(lambda: named_variables(["NOT_ASKED_FOR_YET"], seconds=3.0))


def test_a_search_leaves_time_until_the_deadline() -> None:
    cases: list[tuple[float | None, float | None, float, float]] = [
        (None, None, 5.0, 5.0),
        (600.0, None, 5.0, 5.0),
        (10.0, None, 8.0, 0.5),
        (600.0, 2.0, 5.0, 0.5),
    ]
    for timeout, stall, spent, seconds in cases:
        watch = Watch(["ANY"])
        watch.limit(timeout, stall, spent)
        assert watch.seconds == seconds


def test_other_programs_are_noticed_while_they_run_and_after() -> None:
    before = children_now()
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    running = children_now()
    process.communicate()
    assert len({before, running, children_now()}) == 3


#: Independent of any search: what a process asks its C library for.
ASKS = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
extern char **environ;
static char *find(const char *name, size_t length) {
  for (char **each = environ; each && *each; each++)
    if (!strncmp(*each, name, length) && (*each)[length] == '=') return *each + length + 1;
  return 0;
}
static char *asked(const char *name) {
  char *log = find("ASKED_LOG", 9), line[256];
  size_t length = strlen(name);
  if (log && length < 255) {
    int file = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    memcpy(line, name, length);
    line[length] = 10;
    if (write(file, line, length + 1)) {}
    close(file);
  }
  return find(name, length);
}
char *getenv(const char *name) { return asked(name); }
char *secure_getenv(const char *name) { return asked(name); }
"""


@needs_gxx
@pytest.mark.slow
def test_whatever_a_process_with_torch_asks_for_is_found_in_what_it_has_loaded(tmp_path: Path) -> None:
    (tmp_path / "asks.c").write_text(ASKS)
    log, library = tmp_path / "asked", tmp_path / "asks.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(tmp_path / "asks.c"), "-o", str(library)], check=True)
    code = """
import torch, torch.distributed
torch.nn.functional.conv2d(torch.randn(1, 1, 8, 8), torch.randn(1, 1, 3, 3)) @ torch.ones(6)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
del os.environ["LD_PRELOAD"]
asked = {*open(os.environ["ASKED_LOG"]).read().split()}
asked = sorted(name for name in asked if name.startswith(("TORCH_", "PYTORCH_", "OMP_", "PYTHONH", "MKL_C", "GLOO_S")))
found = named(*asked, "MIOPEN_FIND_MODE")
print(json.dumps([asked, sorted(name for name, by in found["by"].items() if not by["count"])]))
"""
    asked, unread = in_a_fresh_process(code, LD_PRELOAD=str(library), ASKED_LOG=str(log))
    assert {"TORCH_SHOW_CPP_STACKTRACES", "OMP_NUM_THREADS", "PYTHONHASHSEED"} <= {*asked}
    assert unread == ["MIOPEN_FIND_MODE"]
