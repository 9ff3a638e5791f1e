"""What is known of a workspace: journals of any number of writers, folded into one cache; directories and values."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.recipes import ONE, recipe_of

from pytest_aorta.workflow import known
from pytest_aorta.workflow.known import Decision, Journal, Known, RequestDigests, Workspace

RECIPE = '[workspace]\nvalue_file = "v.json"\n[[action]]\nname = "matrix"\nworkload = "gemm"\n'

REQUEST = RequestDigests(digest="r1", sources={"/w.py": "d1"})


def read(folder: Path) -> Workspace:
    return Workspace.from_cache(recipe_of(RECIPE, str(folder / "aorta.toml")))


def completed(folder: Path) -> dict[str, dict[str, str]]:
    found = read(folder).known.completed
    return {name: {unit: each[0] for unit, each in units.items() if each} for name, units in found.items()}


def journals(folder: Path) -> list[Path]:
    return sorted((folder / ".aorta/staged").glob("*.jsonl"))


def journal_of(folder: Path, *lines: bytes) -> Path:
    path = folder / ".aorta/staged/00000000000000000001-x.jsonl"
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def test_what_was_journaled_is_read_and_then_in_the_cache(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / ".aorta")) as journal:
        journal.add("matrix", "local-none/0", "ok", REQUEST)
        assert completed(tmp_path) == {"matrix": {"local-none/0": "ok"}}  # it may still grow, and stays
        journal.add("matrix", "local-none/0", "timeout", REQUEST)  # the last one counts
        journal.add("compare", "a b\nc", "completed")
        journal.add("compare", "gone", "failed")
        journal.add("compare", "gone", None)
        assert not (tmp_path / ".aorta/index.sqlite").exists()
    expected = {"matrix": {"local-none/0": "timeout"}, "compare": {"a b\nc": "completed"}}
    for _ in range(2):
        assert completed(tmp_path) == expected
        assert journals(tmp_path) == []
    assert read(tmp_path).known.requests == {REQUEST.key: REQUEST}


def test_nothing_is_folded_twice_when_a_reader_was_killed_before_it_removed_the_journal(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / ".aorta")) as journal:
        journal.add("one", "a", "failed")
    (path,) = journals(tmp_path)
    lines = path.read_bytes()
    found = read(tmp_path)
    path.write_bytes(lines)
    assert found.record(Known(completed={"one": {"a": ("completed", "")}})) == (1, 0)
    assert completed(tmp_path) == {"one": {"a": "completed"}}
    assert not path.exists()


def test_a_scan_replaces_nothing_that_others_have_completed_in_the_meantime(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / ".aorta")) as journal:
        journal.add("one", "a", "completed")
        journal.add("one", "b", "completed")
    before = read(tmp_path)
    with closing(Journal(tmp_path / ".aorta")) as journal:
        journal.add("one", "a", "failed")
        journal.add("one", "c", "failed")
    found = Known(completed={"one": {"c": ("completed", ""), "d": ("completed", "")}})
    assert before.record(found, lambda action, unit: True) == (1, 1)
    assert completed(tmp_path) == {"one": {"a": "failed", "c": "failed", "d": "completed"}}


def test_decisions_add_up_as_long_as_they_are_about_the_same(tmp_path: Path) -> None:
    added = Known()
    for asked, cell in (("x", "a"), ("x", "b"), ("y", "c")):
        added.add(Known(decided={"matrix": Decision(asked=asked, cells={cell: "why"})}))
        if asked == "x":
            assert cell in added.decided["matrix"].cells
    assert added.decided["matrix"] == Decision(asked="y", cells={"c": "why"})


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"version": 99}', "\udcff", "[" * 100_000, '{"completed": {"one": ["a"]}}'),
        *('{"completed": {"one": {"a": ["exploded", ""]}}}', '{"requests": {"k": {"digest": 7}}}', '{"other": 1}'),
    ],
    ids=lambda text: text[:60],
)
def test_a_damaged_line_of_a_journal_counts_as_empty_and_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / ".aorta/staged").mkdir(parents=True)
    (tmp_path / ".aorta/staged/1.jsonl").write_bytes(f"{text}\n".encode("utf-8", "surrogateescape"))
    found = read(tmp_path)
    assert (found.known.completed, found.damaged) == ({}, {"staged/1.jsonl": "has 1 line that cannot be read"})


@pytest.mark.parametrize("text", ["", "{", "SQLite format 3\0" + "x" * 5000])
def test_a_damaged_index_counts_as_empty_and_is_made_again(tmp_path: Path, text: str) -> None:
    (tmp_path / ".aorta").mkdir()
    (tmp_path / ".aorta/index.sqlite").write_text(text)
    found = read(tmp_path)
    assert (found.known.completed, list(found.damaged)) == ({}, ["index.sqlite"])
    found.record(Known(completed={"one": {"a": ("completed", "")}}))
    assert completed(tmp_path) == {"one": {"a": "completed"}}


def test_one_directory_is_read_without_the_others(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        make(tmp_path, name, name * 2)
    recipe = recipe_of(RECIPE + ONE, str(tmp_path / "aorta.toml"))
    everything = Workspace.from_cache(recipe)
    assert [everything.value_of(name) for name in everything.names] == ["aa", "bb", "cc"]
    everything.record(Known(completed={"one": dict.fromkeys("abc", ("completed", ""))}))
    found = Workspace.from_cache(recipe, {"b", "gone", "../b"})
    assert (found.names, found.value_of("b")) == (["b"], "bb")
    assert found.known.completed["one"] == {"b": ("completed", "")}
    assert found.record(Known(), lambda action, unit: unit == "b") == (0, 1)
    assert completed(tmp_path) == {"one": {"a": "completed", "c": "completed"}}


@pytest.mark.parametrize(
    "line",
    [
        *(b"null", b"[]", b"\xff\x00\xfe", b"[" * 100_000, b"9" * 5000, b'{"kind": "later"}', b"x" * 20_000_000),
        *(b'{"completed": {"one": {"a": ["ok", 3]}}}', b'{"completed": {"one": [1]}}', b'{"completed": {"one": 1'),
    ],
    ids=lambda line: line[:50].decode(errors="replace"),
)
def test_a_line_that_says_nothing_is_left_out_and_its_journal_named(tmp_path: Path, line: bytes) -> None:
    good = b'{"completed": {"one": {"%s": ["completed", ""]}}}'
    path = journal_of(tmp_path, good % b"a", line, good % b"b")
    found = read(tmp_path)
    bad = -(-len(line) // 2**24)
    assert found.damaged == {f"staged/{path.name}": f"has {bad} line{'s' * (bad > 1)} that cannot be read"}
    assert read(tmp_path).damaged  # until a scan has found what it had said
    found.record(Known())
    assert completed(tmp_path) == {"one": {"a": "completed", "b": "completed"}}
    assert not read(tmp_path).damaged
    assert journals(tmp_path) == []


def test_folders_links_and_the_last_line_of_a_killed_writer_are_no_damage(tmp_path: Path) -> None:
    path = journal_of(tmp_path, b'{"completed": {"one": {"a": ["completed", ""]}}}')
    with path.open("ab") as file:
        file.write(b'{"completed": {"one": {"b"')
    (path.parent / "1.jsonl").mkdir()
    (path.parent / "2.jsonl").symlink_to("nowhere")
    found = read(tmp_path)
    assert (found.damaged, [*found.known.completed["one"]]) == ({}, ["a"])


def test_what_is_written_after_the_disk_was_full_is_whole(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(Journal(tmp_path / ".aorta")) as journal:
        journal.add("one", "a", "completed")
        (path,) = journals(tmp_path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, hard))
        try:
            for _ in range(2):
                with pytest.raises(OSError, match=r"No space left|File too large"):
                    journal.add("one", "lost", "completed")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
        journal.add("one", "b", "completed")
    assert completed(tmp_path) == {"one": {"a": "completed", "b": "completed"}}


def test_source_files_of_trials_are_written_when_they_are_others(tmp_path: Path) -> None:
    many = RequestDigests(
        digest="r", sources={f"/package/module_{number}.py": "0123456789abcdef" for number in range(100)}
    )
    with closing(Journal(tmp_path / ".aorta")) as journal:
        for number in range(20):
            journal.add("m", f"c/{number}", "ok", many if number != 10 else REQUEST)
        (path,) = journals(tmp_path)
    assert path.read_text().count("module_7.py") == 1
    assert len(completed(tmp_path)["m"]) == 20


WRITER = """
import sys, time
from pathlib import Path
from pytest_aorta.workflow.known import Journal
journal = Journal(Path(sys.argv[1]) / ".aorta")
for number in range(1_000_000):
    journal.add("matrix", f"{sys.argv[2]}/{number}", "ok")
    if number == 50:
        print("writes", flush=True)
    if number > 1000:
        time.sleep(0.001)
"""


def test_writers_that_are_killed_lose_no_line_that_they_have_written(tmp_path: Path) -> None:
    for number in range(2):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), f"c{number}"], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writes\n"
        assert read(tmp_path).is_growing
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
    units = list(completed(tmp_path)["matrix"])
    for number in range(2):
        own = sorted((unit for unit in units if unit.startswith(f"c{number}/")), key=lambda unit: int(unit[3:]))
        assert own == [f"c{number}/{index}" for index in range(len(own))]
        assert len(own) > 50
    assert journals(tmp_path) == []


def make(folder: Path, name: str, value: object = None) -> None:
    directory = folder / "workspace" / name
    directory.mkdir(parents=True)
    (directory / "v.json").write_text(json.dumps(value))


def test_directories_are_all_folders_but_the_results_of_workloads(tmp_path: Path) -> None:
    assert read(tmp_path).names == []
    for name in ("b", "a", "matrix", "\udcff \n"):
        make(tmp_path, name)
    (tmp_path / "workspace/file").touch()
    assert read(tmp_path).names == ["a", "b", "\udcff \n"]


@pytest.mark.parametrize("by_threads", [False, True])
def test_an_edited_value_is_seen_when_values_are_refreshed_and_by_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_threads: bool
) -> None:
    make(tmp_path, "a", {"x": [1, float("nan")]})
    make(tmp_path, "\udcff", {"text": "\ud800"})
    first = read(tmp_path)
    assert [first.value_of(name)["x" if name == "a" else "text"] for name in first.names][1] == "\ud800"
    first.save()
    (tmp_path / "workspace/a/v.json").write_text('{"x": 22}')
    again = read(tmp_path)
    monkeypatch.setattr(known, "_WAITS", -1 if by_threads else math.inf)
    monkeypatch.setattr(known, "_AT_ONCE", 1)
    assert again.value_of("a") != {"x": 22}
    assert Workspace(recipe_of(RECIPE, str(tmp_path / "aorta.toml"))).value_of("a") == {"x": 22}
    assert [(name, {*there}) for name, there in again.look(again.names, 3)] == [
        (name, {"v.json"}) for name in again.names
    ]
    again.save()
    assert read(tmp_path).value_of("a") == {"x": 22}


def test_what_a_reader_looks_up_does_not_undo_what_others_complete(tmp_path: Path) -> None:
    make(tmp_path, "a", 1)
    reader = read(tmp_path)
    reader.value_of("a")
    with closing(Journal(tmp_path / ".aorta")) as journal:
        journal.add("one", "a", "completed")
    read(tmp_path)
    reader.save()
    assert completed(tmp_path) == {"one": {"a": "completed"}}
    (tmp_path / "workspace/a/v.json").unlink()
    assert read(tmp_path).value_of("a") == 1
