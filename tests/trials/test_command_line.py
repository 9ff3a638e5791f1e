"""A command as text: its words, its placeholders, the files that it names, and its name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.common.texts import identifier
from pytest_aorta.trials.command_line import (
    command_words,
    distinct_names,
    files_in,
    fill_in,
    label_of,
    launcher_in,
    script_of,
)
from pytest_aorta.trials.execution import TRIAL_DIR, TRIAL_INDEX, TRIAL_SEED

VALUES = {TRIAL_INDEX: "3", TRIAL_DIR: "/a b/files", TRIAL_SEED: "42"}


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_words_are_those_of_a_shell(words: list[str]) -> None:
    assert command_words(shlex.join(["program", *words])) == ["program", *words]


def test_what_is_no_command_is_refused_without_the_values_of_variables() -> None:
    for wrong in ["", "  ", "''", "python 'x", "a\0b", "HF_TOKEN=abc python x.py"]:
        with pytest.raises(ValueError, match="a program and its arguments") as refused:
            command_words(wrong)
        assert "abc" not in str(refused.value)


@pytest.mark.parametrize(
    ("command", "character", "form"),
    [
        ("python x.py | tee y", "|", "\"bash -o pipefail -c 'python x.py | tee y'\""),
        ("make && ./x", "&&", "\"bash -c 'make && ./x'\""),
        ("python x.py --data $HOME/data", "$HOME", "'bash -c \"python x.py --data $HOME/data\"'"),
        ("python x.py > 'my log'", ">", "\"bash -c '...'\""),
        ("env HF_TOKEN=abc x --lr=1 ; y", ";", "\"bash -c 'env HF_TOKEN=... x --lr=1 ; y'\""),
        ("ls *.none-such *.txt", "*.txt", "\"bash -c 'ls *.none-such *.txt'\""),
        ("x ~/data", "~", "\"bash -c 'x ~/data'\""),
    ],
)
def test_what_only_a_shell_would_do_is_refused_with_the_form_that_works(
    command: str, character: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError) as refused:
        command_words(command)
    assert str(refused.value).startswith(f"no {character!r} outside of quotes")
    assert f"--aorta-command {form}; " in str(refused.value)
    assert "abc" not in str(refused.value)
    if "..." not in form:
        assert command_words(shlex.split(form)[0])[0] == "bash"


def test_quotes_keep_such_characters() -> None:
    with pytest.raises(ValueError, match=re.escape("no '$OMP' in double quotes, because no shell runs the command")):
        command_words('test -n "$OMP"')
    assert command_words("a 'x|y' '$HOME' \\; ^x$ b~ --re=^a$")[1:] == ["x|y", "$HOME", ";", "^x$", "b~", "--re=^a$"]


def test_placeholders_are_filled_in_and_other_braces_stay() -> None:
    words = ['{"trial": {trial}, "dirs": {}}', "{dir}/{seed}", "{0}", "{ seed }", "{Seed}", "${HOME}", "{seed:04d}"]
    assert fill_in(words, VALUES) == ['{"trial": 3, "dirs": {}}', "/a b/files/42", *words[2:]]


def test_scripts_and_configurations_decide_what_a_command_does_data_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "run.sh", "ds.json", "cfg.yaml", "data.bin", "tool"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / "package" / "sub").mkdir(parents=True)
    (tmp_path / "package" / "__main__.py").touch()
    (tmp_path / "package" / "sub" / "mod.py").touch()

    assert files_in(["python", "train.py", "--ds=ds.json", "--config", "cfg.yaml", "data.bin", "--out", "x.json"]) == [
        "train.py",
        "ds.json",
        "cfg.yaml",
    ]
    assert script_of(["torchrun", "--nproc-per-node", "2", "train.py", "run.sh"]) == "train.py"
    assert script_of(["./tool", "x"]) == "./tool"
    assert script_of(["python", "-m", "package.sub.mod"]) == "package/sub/mod.py"
    assert script_of(["python", "-m", "package"]) == "package/__main__.py"
    assert script_of(["python", "-c", "print()"]) is None
    assert files_in(["python", "gone.py"]) == []


@pytest.mark.parametrize(
    "command",
    [
        "bash -c 'cd . && python a.py --cfg=c.yaml || true'",
        "./go.sh",
        "bash -ex go.sh x",
        "./without-first-line",
        "env X=1 sh -ec '(./go.sh)'",
    ],
)
def test_files_are_found_in_the_words_of_shells_and_in_their_scripts(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = "export X='1\n2'\nif true; then\n  python a.py --cfg=c.yaml &&\\\n echo \"x; fi\n./go.sh # again\n"
    files = {"a.py": "", "c.yaml": "", "go.sh": f"#!/usr/bin/env bash\n{script}"}
    for name, text in {**files, "without-first-line": script}.items():
        (tmp_path / name).write_text(text)
    assert {"a.py", "c.yaml"} <= {Path(file).name for file in files_in(command_words(command))}


def test_its_launcher_is_one_of_its_words() -> None:
    cases: list[tuple[str, str | None]] = [
        ("torchrun --nproc-per-node 2 train.py", "torchrun"),
        ("bash -c '/opt/bin/torchrun train.py && true'", "torchrun"),
        ("python -m torch.distributed.run train.py", "torch.distributed.run"),
        ("accelerate launch train.py", "accelerate"),
        ("env A=1 mpirun -n 2 ./x", "mpirun"),
        ("python train.py --launcher=torchrun-like x", None),
        ("python my-srun x", None),
    ]
    for command, launcher in cases:
        assert launcher_in(command) == launcher


def test_its_label_says_what_it_runs() -> None:
    cases: list[tuple[str, str]] = [
        ("python train.py --steps 40", "train"),
        ("torchrun --nproc-per-node 2 src/my-train.py", "my-train"),
        ("python -m package.sub.mod x", "mod"),
        ("python -m package.__main__", "package"),
        ("bash -c 'a && b'", "bash"),
        ("/opt/bin/all_reduce_perf -b 8", "all_reduce_perf"),
        ("./äöü.py", "program"),
        ("'../../e vil/$x[1]::y.py'", "x-1-y"),
        ("/usr/bin/python3.11 -c 'print()'", "python3.11"),
        ("./train.bin --lr 1", "train.bin"),
    ]
    for command, label in cases:
        assert label_of(command_words(command)) == label


@given(st.lists(st.lists(st.text(max_size=60), min_size=1), min_size=1, max_size=4))
def test_a_name_is_safe_in_node_ids_and_paths(commands: list[list[str]]) -> None:
    for name in distinct_names([["p", *words] for words in commands]):
        assert identifier(name) == name
        assert len(name) <= 100


def test_commands_are_told_apart_by_the_words_that_differ() -> None:
    commands = ["python train.py --lr 1 --fast", "python train.py --lr 2", "python other.py", "bash -c 'x y'"]
    assert distinct_names([command_words(command) for command in commands]) == [
        *("command-train-lr-1-fast", "command-train-lr-2", "command-other", "command-bash"),
    ]
    alike = ["python a.py '['", "python a.py ']'", "python a.py 1 2", "python a.py 2 1", "python a.py"]
    assert len(set(distinct_names([command_words(command) for command in alike]))) == len(alike)
    assert distinct_names([["python", "a.py"]] * 2) == ["command-a", "command-a"]  # which a plan refuses
