"""``pytest-aorta env``: this machine as a trial would record it, and what differs between two records."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest
from support.projects import command
from support.records import record

SNAPSHOT: dict[str, Any] = {
    "schema_version": "1.1",
    "captured_at": "2026-01-01T00:00:00.000+00:00",
    "host": {"kernel": "6.1", "cpu_model": "EPYC"},
    "torch": {"version": "2.12.0"},
    "packages": {"versions": {"numpy": "2.0"}, "digest": "d1", "count": 2},
    "process": {"nice": 0},
    "env_vars": {"OMP_NUM_THREADS": "4"},
}


def write(file: Path, **changes: Any) -> Path:
    """A file of ``env --json``."""
    file.write_text(json.dumps({**SNAPSHOT, **changes}))
    return file


def diff(a: Path, b: Path) -> list[str]:
    result = command("env", "--diff", a, b)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for name in ("TORCH_API_TOKEN", "MY_TOKEN", "MY_SLOW"):
        monkeypatch.setenv(name, "hunter2")
    shown = command("env")
    assert shown.exit_code == 0
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["kernel", platform.release()] in rows
    assert ["Python", platform.python_version()] in rows
    assert ["OMP_NUM_THREADS", "3"] in rows
    text = command("env", "--json").stdout
    assert json.loads(text)["host"]["kernel"] == platform.release()
    assert "hunter2" not in shown.stdout + text
    # What it writes, it reads.
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text(text)
    for name in ("OMP_NUM_THREADS", "MY_TOKEN", "MY_SLOW"):
        monkeypatch.delenv(name)
    other.write_text(command("env", "--json").stdout)
    # Any other variable is compared, too, whatever is in it.
    unknown = [f"{name} (value not recorded) -> unset" for name in ("MY_SLOW", "MY_TOKEN")]
    assert diff(one, other) == ["OMP_NUM_THREADS 3 -> unset", *unknown]


def test_two_images_with_equal_versions_and_another_database_of_kernels_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A double of ROCm: a library and its Tensile database."""
    library = tmp_path / "rocm/lib/librocblas.so.5"
    database = library.parent / "rocblas/library/TensileLibrary_gfx942.dat"
    database.parent.mkdir(parents=True)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = [tmp_path / "one.json", tmp_path / "other.json"]
    for file, content in zip(files, ("tuned", "Tuned"), strict=True):
        library.write_text("rocBLAS")
        database.write_text(content)
        monkeypatch.setattr("pytest_aorta.probe.kernels._noted", None)  # as another process has it
        file.write_text(command("env", "--json").stdout)
    assert diff(*files) == ["same versions, different Tensile database of rocBLAS"]
    assert "build of librocblas.so.5" in command("env").stdout


def test_differences_of_two_machines_in_plain_words(tmp_path: Path) -> None:
    one = write(tmp_path / "one.json")
    other = write(
        tmp_path / "other.json",
        host={"kernel": "6.9\x1b[31m", "cpu_model": "EPYC"},
        torch={"version": "2.13.0", "git_version": "abc"},
        env_vars={},
    )
    assert diff(one, other) == ["torch 2.12.0 -> 2.13.0", "OMP_NUM_THREADS 4 -> unset", "kernel 6.1 -> 6.9\ufffd[31m"]
    found = json.loads(command("env", "--json", "--diff", one, other).stdout)["differences"]
    assert [(each["what"], each["a"], each["b"]) for each in found][:2] == [
        ("torch", "2.12.0", "2.13.0"),
        ("OMP_NUM_THREADS", "4", None),
    ]
    assert diff(one, one) == ["No difference in what is recorded of both."]
    trial = tmp_path / "trial_0.json"
    trial.write_text(json.dumps(record(env={**SNAPSHOT, "host": {"kernel": "5.0", "cpu_model": "EPYC"}})))
    assert diff(one, trial) == ["kernel 6.1 -> 5.0"]


def test_all_installed_packages_are_compared_where_both_say_them(tmp_path: Path) -> None:
    listed = {"digest": "d1", "versions": {"numpy": "2.0", "einops": "0.7"}}
    newer = {"digest": "d2", "versions": {"numpy": "2.0", "einops": "0.8"}}
    packages = {"versions": {"numpy": "2.0"}, "digest": "d2", "count": 2}
    one = write(tmp_path / "one.json", installed=listed)
    other = write(tmp_path / "other.json", installed=newer, packages=packages)
    assert diff(one, other) == ["einops 0.7 -> 0.8"]
    assert diff(write(one), other) == ["installed packages d1 -> d2"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, ": No such file or directory"),
        ("{", " is not valid JSON"),
        ("[1]", " has no environment"),
        ("{}", " has no env"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str | None, problem: str) -> None:
    file = tmp_path / "other.json"
    if text is not None:
        file.write_text(text)
    result = command("env", "--diff", write(tmp_path / "one.json"), file)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {file}{problem}")
    assert result.stderr.endswith(
        "; expected a trial file, a results directory, or a file that pytest-aorta env --json has written\n"
    )
