"""Where it starts: what collectors have found, as sentences and heat lines, in the report and in a terminal."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.results import write_whole_cell as write_cell

from pytest_aorta.cli.main import main
from pytest_aorta.triage.matrix import RunState, matrix_json
from pytest_aorta.triage.reading import read_triage
from pytest_aorta.triage.report import write_report

MODULES = [f"layers.{number}" for number in range(14)]


def _collect(file: Path, name: str, files: dict[str, str], **changes: Any) -> None:
    """Have a trial file say what a collector has found."""
    folder = file.with_suffix("") / "collect" / name
    folder.mkdir(parents=True)
    for each, text in files.items():
        (folder / each).write_text(text)
    record = json.loads(file.read_text())
    artifacts = [f"{file.stem}/collect/{name}/{each}" for each in files]
    found = {"options": {}, "sentence": "", "data": {}, "problems": [], "artifacts": artifacts, **changes}
    file.write_text(json.dumps({**record, "collected": {**record.get("collected", {}), name: found}}))


def _first_bad(file: Path, step: int) -> None:
    """``layers.12`` gives an infinity in a step; the forward pass ends there."""
    rows = [
        {
            "phase": "forward",
            "module": module,
            "what": "output",
            "values": [[each, 2.0**number, None] for each in range(1, step if number > 12 else step + 1)],
        }
        for number, module in enumerate(MODULES)
    ]
    rows[12]["values"][-1][1] = float("inf")  # type: ignore[index]
    data = {"first": {"rank": 1, "step": step, "module": "layers.12", "what": "output"}}
    sentence = f"first non-finite tensor: step {step}, rank 1, layers.12 output; rank 0 had it in step {step}"
    options = {"threshold": "Infinity", "window": 2}
    _collect(file, "numerics", {"heat.json": json.dumps({"1": rows})}, sentence=sentence, data=data, options=options)


def _trace(file: Path, *steps: str) -> None:
    """Each letter stands for the hash of an output."""
    lines: list[dict[str, Any]] = [{"events": ["input:Net", "forward:a", "forward:b#2"]}]
    lines += [
        {"step": number, "events": 0, "values": "".join(letter * 8 for letter in step)}
        for number, step in enumerate(steps, 1)
    ]
    _collect(file, "divergence", {"rank_0.jsonl": "\n".join(map(json.dumps, lines))})


def _shown(path: Path) -> str:
    done = CliRunner().invoke(main, ["show", "collected", str(path)])
    assert done.exit_code == 0, done.output
    return done.output


def _section(results: Path) -> str:
    write_report(results, results.parent / "report.html")
    page = (results.parent / "report.html").read_text()
    return page.partition('<h2 id="starts"')[2].partition("</section>")[0]


def _words(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def test_the_first_bad_tensor_is_marked_among_those_around_it(tmp_path: Path) -> None:
    results = tmp_path / "results"
    files = write_cell(results, "none", "FF.F")
    for file, step in zip(files, (5, 6, 0, 9), strict=True):
        if step:
            _first_bad(file, step)
    said = _shown(results)
    # Sentences that differ in the step only are one, with one heat.
    first = "3 of 4: numerics: first non-finite tensor: steps 5-6, 9, rank 1, layers.12 output; rank 0 had it in the"
    assert f"{first} same step" in said
    assert said.count("in the order of execution") == 1
    lines = [line.split() for line in said.partition("order of execution\n")[2].partition("\n\n")[0].splitlines()]
    assert lines[:3] == [["step", "3", "4", "5"], ["2", "tensors", "before"], ["layers.2", "output", "4", "4", "4"]]
    assert lines[-2:] == [
        [">", "layers.12", "output", "4.1e+03", "4.1e+03", "Inf", "first"],
        ["layers.13", "output", "8.19e+03", "8.19e+03", "."],
    ]
    assert "  trial 0, numerics: train/local-none/trial_0/collect/numerics/heat.json" in said.splitlines()
    assert "step 9, rank 1" in _shown(files[3])

    section = _section(results)
    assert f"{first} same step" in _words(section)
    assert len(re.findall(r'<td class="bad first">', section)) == 1
    assert "layers.12 output 4.1e+03 4.1e+03 Inf first layers.13" in _words(section)
    page = (tmp_path / "report.html").read_text()
    assert "what numerics found" in page
    assert 'href="./results/train/local-none/trial_3/collect/numerics/heat.json"' in page
    shares = [int(each) for each in re.findall(r"--share: (\d+)%", section)]
    assert (min(shares), max(shares)) == (4, 40)  # from the second smallest to the largest value


def test_the_first_tensor_that_differs_is_marked(tmp_path: Path) -> None:
    results = tmp_path / "results"
    files = write_cell(results, "none", "..F")
    for file, steps in zip(files, (("abc", "def"), ("abc", "def"), ("abc", "dxy")), strict=True):
        _trace(file, *steps)
    zoom = {"sentence": "run again: aten.div"}
    seen = {"workload": "train", "cell": "local-none", "compared_with": None, "zoom": zoom}
    table = replace(read_triage(results)[0].table(), divergence=(seen,))
    (results / "matrix.json").write_text(matrix_json(table, RunState()))
    said = _shown(results)
    assert "local-none: 1 of 3 trials differ from the 2 others (2); 1 of these failed, 0 of the others" in said
    assert "  run again: aten.div" in said.splitlines()
    heat = said.partition("rank 0, compared with trial 0, in the order of execution\n")[2].partition("\n\n")[0]
    assert [line.split() for line in heat.splitlines()] == [
        ["step", "1", "2"],
        ["Net", "input", "equal", "equal"],
        [">", "a", "output", "equal", "differs", "first"],
        ["b", "output,", "call", "2", "equal", "differs"],
    ]
    section = _words(_section(results))
    assert "a output equal differs first b output, call 2 equal differs" in section
    assert "run again: aten.div" in section


def test_replays_show_where_the_trials_without_collectors_went_wrong(tmp_path: Path) -> None:
    results = tmp_path / "results"
    [first, _] = write_cell(results, "none", "F.")
    then = json.loads(first.read_text())
    [again] = write_cell(results / "replay", "none", "F")
    _first_bad(again, 5)
    replayed = {"replay_of": {"file": str(first), "started_at": then["started_at"], "exit_status": "workload_failed"}}
    record = json.loads(again.read_text())
    request = {**record["request"], "collect": ["numerics"]}
    again.write_text(json.dumps({**record, **replayed, "request": request}))
    said = _shown(results)
    assert "    1 of 1 replay: numerics: first non-finite tensor: step 5, rank 1" in said
    assert "local-none, replay of trial 0: rank 1, largest absolute value of each tensor" in said
    assert "  replay of trial 0, numerics: replay/train/local-none/trial_0/collect/numerics/heat.json" in said
    section = _words(_section(results))
    assert "1 of 1 replay: numerics: first non-finite tensor: step 5, rank 1" in section
    assert "replay of trial 0, rank 1, largest" in section


@pytest.mark.parametrize("heat", ["", "[]", '{"1": [{}]}', '{"1": [{"phase": [], "module": 1, "values": 2}]}'])
def test_a_file_that_cannot_be_read_leaves_the_sentence(tmp_path: Path, heat: str) -> None:
    [file] = write_cell(tmp_path / "results", "none", "F")
    data = {"first": {"rank": 1, "step": 2}}
    _collect(file, "numerics", {"heat.json": heat}, sentence="first <b>bad</b> tensor", data=data)
    section = _section(tmp_path / "results")
    assert "1 of 1: numerics: first &lt;b&gt;bad&lt;/b&gt; tensor" in section
    assert "<table" not in section


def test_where_nothing_was_collected_there_is_no_section(tmp_path: Path) -> None:
    write_cell(tmp_path / "results", "none", "F.")
    assert _section(tmp_path / "results") == ""
    done = CliRunner().invoke(main, ["show", "collected", str(tmp_path / "results")])
    assert (done.exit_code, "nothing was collected" in done.output) == (2, True)
