"""``pytest-aorta compare`` in text and JSON, and what its exit code says; ``pytest-aorta report`` writes one file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.environments import env
from support.projects import command
from support.results import write_cell

from pytest_aorta.cli.main import main
from pytest_aorta.triage.matrix import RunState, matrix_json
from pytest_aorta.triage.reading import Results
from pytest_aorta.triage.verdicts import Triage


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ``a`` and ``b``: worse and slower without mitigations, the same with one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_cell(Path("a"), "FF" + "." * 18, step_ms=[10.0, 10.1])
    write_cell(Path("a"), "F" + "." * 19, mitigations="omp_1", place=1)
    write_cell(Path("a"), "...", mitigations="old", place=2)
    other = env(torch__version="2.13.0", env_vars={"NCCL_DEBUG": "INFO"})
    write_cell(Path("b"), "F" * 12 + "SS" + "." * 6, step_ms=[13.0, 13.1], env=other)
    write_cell(Path("b"), "F" + "." * 19, mitigations="omp_1", place=1, env=other)
    return tmp_path


def run(*arguments: str, color: bool = False) -> Result:
    return CliRunner().invoke(main, ["compare", *arguments], color=color)


def test_the_text_says_it_all(runs: Path) -> None:
    assert "\x1b[31mworse, slower\x1b[0m" in run("a", "b", color=True).output
    result = run("a", "b")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "A  a  43 trials in 3 cells  2026-01-01 00:00  here",
        "B  b  40 trials in 2 cells  2026-01-01 00:00  here",
        "",
        "gemm            A      B      change (95%)       p             steps  verdict",
        "local-none   2/20  14/20  +60 (+30 to +77)  0.0002  +30% (29 to 30%)  worse, slower",
        "local-omp_1  1/20   1/20   +0 (-19 to +19)       1                    undecided",
        "",
        "fails in new ways in B",
        "  gemm local-none: 2x SIGSEGV in run()",
        "",
        "only in A",
        "  gemm local-old: 3 ok",
        "",
        "differs in the environment of all cells",
        "  torch 2.12.0 -> 2.13.0",
        "  OMP_NUM_THREADS 8 -> unset",
    ]


@pytest.mark.parametrize(
    ("fail_on", "messages"),
    [
        ("worse", ["worse: gemm local-none (2/20 -> 14/20 failed, p 0.0002)"]),
        ("slower", ["slower: gemm local-none (steps +30% (29 to 30%))"]),
        ("new-signature", ["new-signature: gemm local-none (2x SIGSEGV in run())"]),
        ("not-compared", ["not-compared: gemm local-old (only in A)"]),
        ("worse,slower", ["worse: gemm local-none", "slower: gemm local-none"]),
    ],
)
def test_a_condition_that_holds_is_exit_code_1_and_names_the_cells(
    runs: Path, fail_on: str, messages: list[str]
) -> None:
    result = run("a", "b", "--fail-on", fail_on)
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert len(lines) == len(messages)
    assert all(line.startswith(message) for line, message in zip(lines, messages, strict=True))
    assert run("b", "b/../a/gemm/local-omp_1", "--fail-on", "worse,slower,new-signature").exit_code == 0


def test_the_json_has_the_keys_that_the_docs_promise(runs: Path) -> None:
    result = run("a", "b", "--json", "--fail-on", "worse")
    assert result.exit_code == 1
    found = json.loads(result.stdout, parse_constant=lambda constant: pytest.fail(constant))
    assert found["schema_version"] == "1.2"
    first, second = found["cells"]
    assert (first["workload"], first["cell"], first["verdict"]) == ("gemm", "local-none", "worse")
    assert first["failure_rate"]["p_adjusted"] == 2 * first["failure_rate"]["p"]
    assert first["speed"]["verdict"] == "slower"
    assert first["speed"]["interval"]["low"] > 1.15
    assert first["a"]["outcomes"] == {
        **{"ok": 18, "failed": 2, "timeout": 0},
        **dict.fromkeys(("infrastructure", "interrupted", "in_doubt", "did_not_run"), 0),
    }
    assert second["more_trials"] is None
    assert [(cell["test"], cell["options"]) for cell in (first, *found["only_in_a"])] == [(None, None)] * 2
    assert found["only_in_a"][0]["cell"] == "local-old"
    assert found["environment"]["all_cells"][0] == {
        "what": "torch",
        "text": "torch 2.12.0 -> 2.13.0",
        "a": [{"value": "2.12.0", "trials": 40}],
        "b": [{"value": "2.13.0", "trials": 40}],
    }
    page = (Path(__file__).parents[2] / "docs" / "guides" / "compare.md").read_text()
    missing = [key for key in keys_of(found) if f"`{key}`" not in page]
    assert missing == []


def keys_of(data: object) -> set[str]:
    if isinstance(data, dict):
        return set(data).union(*map(keys_of, data.values()))
    return set().union(*map(keys_of, data)) if isinstance(data, list) else set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "a"), "a and a are the same"),
        (("a/gemm", "a"), "lies in"),
        (("a", "nowhere"), "nowhere: there is no such file or folder"),
        (("a", "empty"), "empty: there are no trials"),
        (("a", "foreign"), "foreign: there are no trials; 2 files cannot be read, the first is trial_0.json: "),
        (("a", "other"), "a and other have no cell in common; the first has gemm local-none, "),
        (("a", "b", "--fail-on", "better"), "'better' is not one of worse, slower, all-slower, other-failures, new-"),
        (("a", "b", "--margin", "0"), "'0': expected a share of the baseline's rate such as 50%"),
        (("a",), "Missing argument 'B'"),
    ],
)
def test_bad_input_is_one_clear_message_and_exit_code_2(runs: Path, arguments: tuple[str, ...], message: str) -> None:
    Path("empty").mkdir()
    Path("foreign").mkdir()
    Path("foreign/trial_0.json").write_text('{"schema_version": "0.1", "tri')
    Path("foreign/trial_1.json").write_text("[]")
    write_cell(Path("other"), "...", workload="fsdp")
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)


def test_files_that_cannot_be_read_are_counted_and_named(runs: Path) -> None:
    for index in range(5):
        Path(f"b/gemm/local-none/trial_{index}.json").write_text("{\x1b[31m")
    lines = run("a", "b").output.splitlines()
    assert "B: 5 files could not be read" in lines
    assert any(line.startswith("  gemm/local-none/trial_0.json: not valid JSON") for line in lines)
    assert "  2 more" in lines


def test_names_and_messages_of_others_are_only_shown(runs: Path) -> None:
    hostile = "\x1b[31mred\x1b[0m\n| <b>x</b> \x07\u202e\udcff"
    failure = {"phase": "run", "kind": "exception", "type": "E", "message": hostile}
    for folder, letter in ((Path("a"), "."), (Path("b"), "F")):
        changes: dict[str, Any] = {"failure": failure} if letter == "F" else {}
        write_cell(folder, letter * 4, workload="w", mitigations=f"m{hostile}", place=4, **changes)
    other = env(env_vars__NCCL_DEBUG=hostile, host__hostname=hostile)
    write_cell(Path("b"), "....", mitigations="omp_1", env=other)
    result = run("a", "b", "--fail-on", "new-signature")
    assert result.exit_code == 1
    assert not {"\x1b", "\x07", "\u202e"} & set(result.output)
    assert all(line.isprintable() for line in result.output.splitlines())
    json.loads(run("a", "b", "--json").stdout)


def test_a_long_list_of_differences_is_cut(runs: Path) -> None:
    variables = {f"NCCL_{index}": "1" for index in range(30)}
    write_cell(Path("b"), "....", mitigations="omp_1", env=env(env_vars=variables))
    assert "  and 12 more (--all)" in run("a", "b").output.splitlines()
    assert "more (--all)" not in run("a", "b", "--all").output


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_cell(Path("results"), "FFF.....")
    write_cell(Path("results"), "." * 8, mitigations="omp_1", place=1)
    return tmp_path


def test_the_results_of_the_default_folder_become_one_file(results: Path) -> None:
    result = command("report", "--baseline", "omp_1")
    assert (result.exit_code, result.output) == (0, "report: report.html\n")
    text = Path("report.html").read_text()
    assert text.lower().startswith("<!doctype html>")
    assert "local-omp_1" in text


def test_a_bug_report_is_printed_as_markdown(results: Path) -> None:
    text = command("report", "--markdown").output
    assert text.startswith("**")
    cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("|")]
    assert cells[:3] == ["| Cell", "| ---", "| local-none"]
    assert len(cells) <= 5
    assert "- torch: " in text
    assert not Path("report.html").exists()


def test_a_bug_report_of_a_run_that_has_not_ended_says_what_is_missing(results: Path) -> None:
    assert "- trials: 16 trials in 2 cells\n" in command("report", "--markdown").output
    triage = Triage()
    for trial in Results(Path("results")):
        triage.add(trial.facts)
    table = triage.table()
    state = RunState(planned={row.cell.key: 20 for row in table.rows}, complete=False)
    Path("results/matrix.json").write_text(matrix_json(table, state))
    assert "- trials: 16 trials in 2 cells, 24 more planned\n" in command("report", "--markdown").output
    Path("results/matrix.json").write_text(matrix_json(table, replace(state, complete=True)))  # all were decided
    assert "- trials: 16 trials in 2 cells\n" in command("report", "--markdown").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "-o", "r.html"), "nowhere: there is no such file or folder"),
        (("results", "-o", "no/where/r.html"), "no/where does not exist"),
        (("results", "-o", "results"), "results is a folder"),
        (("results", "-o", "r.html", "--baseline", "none+omp_1"), "--baseline: there is no cell 'none+omp_1'"),
        (("results", "--markdown", "--baseline", "none+omp_1"), "--baseline: there is no cell 'none+omp_1'"),
    ],
)
def test_a_report_of_bad_input_is_one_clear_message_and_exit_code_2(
    results: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = command("report", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert isinstance(result.exception, SystemExit)
    assert not Path("r.html").exists()
