"""Which names a shared object or a source holds: real libraries, and objects that a compiler makes for the test."""

from __future__ import annotations

import os
import platform
import py_compile
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.probe import named_variables
from pytest_aorta.probe.named_variables import (
    Deadline,
    NotAnObject,
    OutOfTime,
    StringRanges,
    names_in_bytecode,
    names_in_object,
    names_in_source,
    string_ranges,
)

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="operands of x86-64")

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
const char *put_together(int which) { return which ? "FAMILY_" : "OF_A_NAME"; }
"""
HELD = {
    *("FIRST_OF_AN_ARRAY", "LAST_OF_AN_ARRAY", "IN_WRITABLE_DATA", "READ_BY_NAME", "IN_A_MESSAGE"),
    *("READ_AS_A_TAIL", "FAMILY_OF_A_NAME"),
}
NOT_HELD = {"BEGINS_A_NAME", "A_NAME_THAT_GOES_ON_FURTHER", "NEVER_MENTIONED", "A_MESSAGE_NOT"}


def compiled(folder: Path, source: str, *options: str, compiler: str = "gcc") -> Path:
    suffix = "cpp" if compiler == "g++" else "c"
    (folder / f"source.{suffix}").write_text(source)
    path = folder / f"lib{'_'.join(options).replace('-', '')}.so"
    command = [compiler, "-shared", "-fPIC", *options, str(folder / f"source.{suffix}"), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def found_in(path: Path, names: set[str]) -> set[str]:
    return names_in_object(str(path), names, Deadline(60))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("library"), LIBRARY, "-O2")


@needs_gcc
def test_strings_are_found_wherever_a_compiler_puts_them(library: Path) -> None:
    assert found_in(library, HELD | NOT_HELD) == HELD


@needs_gcc
def test_an_object_without_section_headers_is_searched_as_a_whole(library: Path, tmp_path: Path) -> None:
    content = bytearray(library.read_bytes())
    content[0x28:0x30] = struct.pack("<Q", 0)  # e_shoff
    stripped = tmp_path / "stripped.so"
    stripped.write_bytes(content)
    assert found_in(stripped, HELD | NOT_HELD) == HELD


@needs_gcc
def test_a_name_of_a_symbol_is_none_of_a_variable(library: Path) -> None:
    assert b"put_together" in library.read_bytes()
    assert found_in(library, {"put_together"}) == set()


@needs_gcc
@pytest.mark.parametrize("end", [0, 3, 16, 63, 64, 500, 2000, 10_000])
def test_a_truncated_object_is_refused_or_searched(library: Path, tmp_path: Path, end: int) -> None:
    cut = tmp_path / "cut.so"
    cut.write_bytes(library.read_bytes()[:end])
    try:
        assert found_in(cut, {"NEVER_MENTIONED"}) == set()
    except NotAnObject:
        assert end < 64


@needs_gxx
@needs_x86
@pytest.mark.parametrize("level", ["-O1", "-O2", "-O3"])
def test_a_string_that_is_copied_by_code_is_found(tmp_path: Path, level: str) -> None:
    """At -O3, the names are operands, and vectors of 16 bytes, and none of them is there as a whole."""
    names = {"HSA_XNACK", "HSA_ENABLE_SDMA", "HSA_NO_SCRATCH_RECLAIM", "GPU_MAX_HW_QUEUES", "EXACTLY8"}
    source = "#include <cstdlib>\n#include <string>\n"
    source += "__attribute__((noinline)) const char *get(std::string name) { return getenv(name.c_str()); }\n"
    source += "".join(f'extern "C" const char *of_{name}() {{ return get("{name}"); }}\n' for name in sorted(names))
    others = {"HSA_NOT_THERE", "GPU_NOT_MENTIONED_AT_ALL"}
    assert found_in(compiled(tmp_path, source, level, compiler="g++"), names | others) == names


def test_the_libraries_of_torch_name_what_they_are_documented_to_read() -> None:
    folder = Path(torch.__file__).with_name("lib")
    threads, others = {"OMP_NUM_THREADS"}, {"DISABLE_TF32", "HSA_XNACK", "A_MADE_UP_VARIABLE"}
    [gomp] = folder.glob("libgomp*.so*")
    assert found_in(gomp, threads | others) == threads
    torch_cpu = folder / "libtorch_cpu.so"
    # oneDNN puts the name together at run time.
    read = {"MKL_NUM_THREADS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"}
    assert found_in(torch_cpu, read | others) == read


def test_the_loader_and_the_interpreter_name_their_variables() -> None:
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    [loader] = [path for path in mapped if path.rpartition("/")[2].startswith("ld-linux")]
    assert found_in(Path(loader), {"MALLOC_PERTURB_", "GLIBC_TUNABLES"}) == {"MALLOC_PERTURB_", "GLIBC_TUNABLES"}
    interpreter = [path for path in mapped if path.rpartition("/")[2].startswith("libpython")] or [sys.executable]
    assert found_in(Path(interpreter[0]).resolve(), {"PYTHONHASHSEED"}) == {"PYTHONHASHSEED"}


def test_what_is_no_object_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "text.so"
    file.write_text("INPUT(libother.so)")
    with pytest.raises(NotAnObject):
        found_in(file, {"ANY"})


def test_a_search_ends_when_its_time_is_over() -> None:
    with pytest.raises(OutOfTime):
        names_in_object(sys.executable, {"ANY"}, Deadline(-1))


WORDS = st.sampled_from([b"AB", b"AB_C", b"_", b"A", b"B", b"\0", b" ", b"=", b"/rustc/"])


@given(parts=st.lists(WORDS, max_size=40), chunk=st.integers(8, 40))
def test_a_search_by_parts_finds_what_a_search_of_the_whole_finds(parts: list[bytes], chunk: int) -> None:
    """Against an object that is one range of data, read as a whole."""
    content = b"".join(parts)
    names = {"AB": b"AB", "AB_C": b"AB_C", "BA": b"BA"}

    def held(word: bytes) -> bool:
        padded = b"\0" + content + b"\0"
        for at in range(1, len(padded)):
            if padded[at : at + len(word)] == word:
                before, after = padded[at - 1 : at], padded[at + len(word) : at + len(word) + 1]
                if after == b"\0" or not (after.isalnum() or after == b"_" or before.isalnum() or before == b"_"):
                    return True
        return b"/rustc/" in content and word in content

    expected = {name for name, word in names.items() if held(word)}
    if held(b"AB_") and held(b"C") and b"/rustc/" not in content:
        expected.add("AB_C")
    file = os.memfd_create("content")
    try:
        os.write(file, content)
        ranges = StringRanges(((0, len(content)),))
        whole, named_variables._CHUNK = named_variables._CHUNK, chunk
        try:
            found = named_variables._search(file, ranges, names, Deadline(60))
        finally:
            named_variables._CHUNK = whole
    finally:
        os.close(file)
    assert expected <= found
    assert found - expected <= ({"AB_C"} if b"/rustc/" in content else set())


@given(st.lists(st.sampled_from(["AB", "AB_C", "_", "A", "9", " ", "'", ".", "\n", "é"]), max_size=20))
def test_a_source_names_whole_words(parts: list[str]) -> None:
    source = "".join(parts)
    expected = {name for name in ("AB", "AB_C") if re.search(rf"(?<![A-Za-z0-9_]){name}(?![A-Za-z0-9_])", source)}
    assert names_in_source(source.encode(), ["AB", "AB_C"]) == expected


def test_bytecode_names_what_its_source_names(tmp_path: Path) -> None:
    source = tmp_path / "reads.py"
    source.write_text("import os\nos.environ.get('READ_BY_CODE')\n")
    code = Path(py_compile.compile(str(source), str(tmp_path / "reads.pyc")) or "").read_bytes()
    assert names_in_bytecode(code, ["READ_BY_CODE", "NOT_READ"]) == {"READ_BY_CODE"}


def test_code_and_tables_hold_no_strings() -> None:
    path = Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"
    file = os.open(path, os.O_RDONLY)
    try:
        assert sum(length for _, length in string_ranges(file).data) < path.stat().st_size / 10
    finally:
        os.close(file)
