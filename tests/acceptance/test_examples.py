"""The folders below ``examples``: what their READMEs say to run, run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.stage import Stage, counts

pytestmark = pytest.mark.usefixtures("as_users_have_it")

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCS = EXAMPLES.parent / "docs"

#: "python" is this one.
OWN = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def type_lines(stage: Stage, lines: str) -> list[pytest.RunResult]:
    found = []
    for program, *rest in map(shlex.split, lines.splitlines()):
        run = {"pytest": stage.run, "pytest-aorta": stage.aorta}.get(program)
        found.append(run(*rest, env=OWN) if run else stage.command(sys.executable, *rest, env=OWN))
    return found


def run_readme(stage: Stage, name: str) -> list[pytest.RunResult]:
    shutil.copytree(EXAMPLES / name, stage.path, dirs_exist_ok=True)
    (block,) = re.findall(r"^```sh\n(.*?)^```$", (EXAMPLES / name / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return type_lines(stage, block)


def rows(result: pytest.RunResult) -> list[list[str]]:
    """The lines of a table, without its heading, as words."""
    return [line.split() for line in result.outlines[1:]]


def test_the_tutorial_of_row(stage: Stage) -> None:
    results = run_readme(stage, "row_tutorial")
    assert rows(results[1]) == [
        ["square", "0", "0", "0", "0", "5", "0", "5", "CPU-hours"],
        ["add", "0", "0", "0", "0", "0", "5", "5", "CPU-hours"],
        ["greet", "0", "0", "0", "0", "2", "0", "2", "CPU-hours"],
    ]
    assert rows(results[2]) == [
        ["directory0", "waiting", "0", "10"],
        ["directory2", "waiting", "0", "1"],
        [],
        ["directory4", "waiting", "0", "5"],
        [],
        ["directory1", "waiting", "3", "4"],
        ["directory3", "waiting", "3", "2"],
    ]
    results[3].assert_outcomes(passed=1)
    results[4].assert_outcomes(passed=10)
    assert [row[1:7] for row in rows(results[5])] == [[str(count), "0", "0", "0", "0", "0"] for count in (5, 5, 2)]
    sums = [(stage.path / f"workspace/directory{number}/sum.txt").read_text() for number in range(5)]
    assert [int(text) for text in sums] == [101, 38, 101, 38, 25]
    greeting = (stage.path / "workspace/directory6/greeting.txt").read_text()
    assert greeting == "Hello, beta & gamma!\n"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one core there is nothing that could differ")
def test_a_triage_of_determinism(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.stage.PATIENCE", 900)  # some dozen processes that import torch
    run, status, cells = run_readme(stage, "determinism")
    assert run.ret == 0
    run.stdout.fnmatch_lines(["*trials of reproduce*", "*trials of matrix*", "holds: matrix: verdict(omp_1)==fixes"])
    found = {name: [int(count) for count in counts[:6]] for name, *counts in rows(status)}
    assert found["reproduce"] == [1, 0, 0, 0, 0, 0]
    assert found["list"] == [2, 0, 0, 0, 0, 0]
    assert found["matrix"][2:] == [0, 0, 0, 0]
    assert "local-omp_1" in cells.stdout.str()
    listed = (stage.path / "workspace/matrix/determinism/local-none/failures.txt").read_text()
    assert "differs_from_reference" in listed
    for path, trial in stage.trials("workspace/matrix").items():
        threads, differing = (trial["result"]["metrics"][key] for key in ("threads", "operations_differing"))
        assert (threads == 1, differing == 0, trial["result"]["failure_count"] == 0) == ("omp_1" in path,) * 3
        assert trial["exit_status"] == ("ok" if "omp_1" in path else "workload_failed")


@pytest.mark.slow
def test_the_tutorial_leads_from_a_flaky_script_to_a_mitigation(stage: Stage) -> None:
    source = (EXAMPLES / "flaky" / "train.py").read_text()
    file = stage.write_file("train.py", source)
    assert any(subprocess.run([sys.executable, file], capture_output=True).returncode for _ in range(100))
    # Which trials fail is decided by their numbers here: chance may spare ten of them.
    decided = source.replace(
        "if weights[0] != steps else 0", "if workers > 1 and int(os.environ['AORTA_TRIAL']) % 5 in (0, 1, 3) else 0"
    )
    assert decided != source
    stage.write_file("train.py", decided)
    once, measured, compared, replayed, report, markdown = _run_page(stage, "start/tutorial.md")
    once_shown, measured_shown, compared_shown, replayed_shown = _shown("start/tutorial.md")
    assert _shape(_table(once)) == _shape(once_shown)
    assert _shape(_table(measured)) == _shape(measured_shown)
    assert _shape(_table(compared)) == _shape(compared_shown)
    replayed.stdout.fnmatch_lines([f"{line.partition(' (')[0]}*" for line in replayed_shown.splitlines()])
    assert report.ret == 0
    assert (stage.path / "report.html").stat().st_size > 10_000
    assert "OMP_NUM_THREADS=1 fixes it" in markdown.stdout.str()

    source = re.findall(
        r"^```python\n(.*?)^```$", (DOCS / "guides" / "command.md").read_text(), re.MULTILINE | re.DOTALL
    )[0]
    stage.write_file("nightly.py", source)
    script = stage.command(sys.executable, "nightly.py", env=OWN)
    assert script.outlines == ["ok 0.0"] * 4


@pytest.mark.slow
@pytest.mark.long  # 36 fresh processes with torch
def test_a_flaky_nan_is_followed_down_to_the_operator(stage: Stage) -> None:
    source = (EXAMPLES / "nan" / "train.py").read_text()
    # Which trials are late is decided by their numbers here: 1, 3, 5, 6, 7 and 9 fail.
    decided = source.replace("random.Random()", "random.Random(int(os.environ['AORTA_TRIAL']))")
    assert decided != source
    stage.write_file("train.py", decided)
    bad, shown, differing, report, fixed = _run_page(stage, "guides/localize.md")
    bad.stdout.fnmatch_lines(
        ["*of 8: numerics: first non-finite tensor: steps *, forward, scale output, 512 of 512 *inputs were finite"]
    )
    shown.stdout.fnmatch_lines(["* blocks.1 output *", "  > scale output *Inf  first", "* blocks.2.up output *"])
    text = " ".join(differing.stdout.str().split())
    assert "first in step 5, the output of `scale`" in text
    line = 1 + source.splitlines().index("        return x / largest")
    assert f"of input 1 of aten.div.Tensor in `scale` (train.py:{line}), which none of the recorded" in text
    assert f"(train.py:{line})" in (DOCS / "guides" / "localize.md").read_text()
    assert report.ret == 0
    page = (stage.path / "report.html").read_text().partition('<h2 id="starts"')[2].partition("</section>")[0]
    assert re.search(r'<tr class="first"><th scope="row"><bdi>scale output', page)
    assert "aten.div.Tensor" in page
    fixed.stdout.fnmatch_lines(["WAIT_FOR_SCALE=1 fixes it: 0 of 10 failed, 6 of 10 without it*"])


def _shown(name: str) -> list[str]:
    return re.findall(r"^```text\n(.*?)^```$", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL)


def _table(result: pytest.RunResult) -> str:
    """From the heading of the columns to the conclusion, without what is said of the run."""
    lines = [line for line in result.outlines if not line.startswith("    runs are slower")]  # a thread waits longer
    lines = lines[next(i for i, line in enumerate(lines) if line.startswith("cell ")) :]
    ends = ("earlier results", "results:", "p and verdicts", "Slower runs", "next:")
    return "\n".join(lines[: next(i for i, line in enumerate(lines) if line.startswith(ends))])


def _shape(text: str) -> str:
    """The words of an output: numbers, and what is as wide as they are, vary from run to run."""
    words = " ".join(re.sub(r"[<=]? ?[\d.,:%T-]*\d[\d.,:%T-]*", "#", text).split())
    return re.sub(r" (A fault of timing|Slower runs).*", "", words)  # one thread takes longer, which may show


def _run_page(stage: Stage, name: str) -> list[pytest.RunResult]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL)
    return type_lines(stage, "".join(code for language, code in blocks if not language))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one core there is nothing that could differ")
def test_runs_end_as_their_page_shows(stage: Stage) -> None:
    page = (DOCS / "guides" / "ending.md").read_text()
    search = (DOCS / "guides" / "search.md").read_text().partition("## The smallest set that fixes")[2]
    commands = re.findall(r"^```\n(pytest(?:-aorta)? .*)\n```$", page + search, re.MULTILINE)
    until_decided, for_so_long, with_gates, minimize = (shlex.split(it)[1:] for it in commands)
    shown = re.findall(r"^```text\n(.*?)```$", page + search, re.MULTILINE | re.DOTALL)
    (registry,) = re.findall(r"^```json\n(.*?)```$", search, re.MULTILINE | re.DOTALL)
    stage.write_file("eight.json", registry)

    done = stage.run_here(*until_decided)
    per_cell = Counter(path.split("/")[1] for path in stage.files())
    assert per_cell == {"local-none": 8, "local-omp_1": 8}
    assert set(shown[0].splitlines()) <= set(done.outlines)

    shutil.rmtree(stage.results)
    done = stage.run_here(*["3s" if word == "8h" else word for word in for_so_long], "--aorta-trials", "40")
    (rounds,) = set(Counter(path.split("/")[1] for path in stage.files()).values())
    assert re.search(rf"^{rounds} rounds? within 3s", done.stdout.str(), re.MULTILINE)

    done = stage.run_here(*with_gates)
    assert done.ret == 0
    assert set(shown[1].splitlines()) <= set(done.outlines)

    done = stage.aorta(*minimize)
    assert counts(done) == {"passed": 1}
    assert shown[2].strip() in done.outlines
