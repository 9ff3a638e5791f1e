"""Real runs, recorded once and judged again. A file says in ``shows`` what it is about.

``python test_judge_cases.py EVIDENCE NAME "WHAT IT SHOWS"`` makes a case of the ``attempt_<k>/evidence.json`` in the
artifacts folder of a distributed trial that failed. What the judge makes of it now is written as what is expected: read
it before you commit it. Files named ``double_*`` are no runs: they hold texts of torch's sources, of libraries that no
machine here has.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from pytest_aorta.launch.diagnosis.evidence import AttemptEvidence
from pytest_aorta.launch.diagnosis.judge import judge

CASES = Path(__file__).with_name("cases")

#: Takes the place of the folders of files.
ANONYMOUS = "/home/me/"

#: Characters of a message that are compared: what comes after them may be long.
COMPARED = 400


def judged(evidence: dict[str, Any]) -> dict[str, Any]:
    """What is compared of a judgement."""
    found = judge(AttemptEvidence.from_json(json.dumps(with_collectives(evidence))))
    return {
        "blame": {str(record.rank): record.blame for record in found.ranks},
        "passed": {str(record.rank): record.passed for record in found.ranks},
        "failure": found.failure and in_short(found.failure),
        "cleanup": found.cleanup and in_short(found.cleanup),
        "location": found.location and found.location[:COMPARED],
        "hung_rank": found.hung_rank,
    }


def in_short(failure: Any) -> dict[str, Any]:
    keys = ("phase", "kind", "type", "signal", "exit_code", "rank", "confidence", "evidence")
    found = {key: getattr(failure, key) for key in keys if getattr(failure, key) is not None}
    return {**found, "message": failure.message[:COMPARED]}


def with_collectives(evidence: dict[str, Any]) -> dict[str, Any]:
    """With the collectives of ranks in full, which are written as runs: ``[5, 2, {...}]`` for numbers 5 and 6."""
    ranks = []
    for rank in evidence["ranks"]:
        runs = rank.get("collectives", [])
        entered = [{**what, "number": first + at} for first, count, what in runs for at in range(count)]
        ranks.append({**rank, "collectives": entered})
    return {**evidence, "ranks": ranks}


def in_runs(collectives: list[dict[str, Any]]) -> list[list[Any]]:
    runs: list[list[Any]] = []
    for each in collectives:
        what = {key: value for key, value in each.items() if key not in ("number", "at")}
        if runs and runs[-1][2] == what and sum(runs[-1][:2]) == each["number"]:
            runs[-1][1] += 1
        else:
            runs.append([each["number"], 1, what])
    return runs


#: What evidence has unless it says otherwise; null is left out everywhere.
DEFAULTS = {"started": False, "running": False, "imports": False, "collectives": []}


def without_defaults(value: Any) -> Any:
    if isinstance(value, list):
        return [without_defaults(each) for each in value]
    if isinstance(value, dict):
        found = {key: without_defaults(each) for key, each in value.items() if each is not None}
        return {key: each for key, each in found.items() if key not in DEFAULTS or DEFAULTS[key] != each}
    return value


def written(case: dict[str, Any]) -> str:
    """A case as JSON, with a line for each field of the trial, its ranks, and what is expected."""
    given = without_defaults(case["evidence"])
    lines = [_fields(rank, "   ") for rank in given.pop("ranks")]
    trial = _fields(given, "  ").removesuffix("\n  }") + ',\n   "ranks": [' + ", ".join(lines) + "]\n  }"
    shows, expected = json.dumps(case["shows"]), _fields(case["expected"], "  ")
    return f'{{\n "shows": {shows},\n "evidence": {trial},\n "expected": {expected}\n}}\n'


def _fields(found: dict[str, Any], indent: str) -> str:
    """Short ones beside each other."""
    lines: list[str] = []
    for key, value in found.items():
        text = f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        if lines and len(lines[-1]) + len(text) < 110:
            lines[-1] += f", {text}"
        else:
            lines.append(text)
    return "{\n" + ",\n".join(f"{indent} {line}" for line in lines) + f"\n{indent}}}"


def test_what_is_made_of_a_real_run() -> None:
    cases = {path.stem: json.loads(path.read_text()) for path in sorted(CASES.glob("*.json"))}
    assert len(cases) > 80
    for name, case in cases.items():
        assert (name, judged(case["evidence"])) == (name, case["expected"])


def test_no_case_names_a_machine() -> None:
    # The repository, the folder of temporary files, and the user's own, by every name that they have here.
    folders = (Path(__file__).parents[3], Path("/tmp"), Path(tempfile.gettempdir()), Path.home())
    names = {str(name) for folder in folders for name in (folder, folder.resolve()) if len(name.parts) > 1}
    for path in CASES.glob("*.json"):
        text = path.read_text().replace(ANONYMOUS, "")
        assert [name for name in names if f"{name}/" in text] == [], path.name


def anonymous(evidence: dict[str, Any]) -> dict[str, Any]:
    """Without the names of hosts, paths and process ids of this machine; times begin at 1000."""
    text = json.dumps(evidence)
    for number, host in enumerate(sorted({rank["host"] for rank in evidence["ranks"] if rank["host"]})):
        text = text.replace(json.dumps(host), f'"host{number}"')
    text = re.sub(r"(/[\w.+-]+)+/(lib/python3[.\d]*(/site-packages)?)/", r"/\2/", text)
    text = re.sub(r"/__w/pytorch/pytorch/", "", text)
    text = re.sub(r"(?<![\w.])(/[\w.+-]+)+/([\w-]+\.py)", rf"{ANONYMOUS}\2", text)
    first = min(map(float, re.findall(r"\b1\d{9}\.\d+", text)), default=1000.0)
    text = re.sub(r"\b1\d{9}\.\d+", lambda time: str(round(float(time[0]) - first + 1000.0, 6)), text)

    def without_places(found: dict[str, Any]) -> dict[str, Any]:
        found.update({key: {} for key in ("process",) if key in found})
        gone = {key: None for key in ("pid", "error_file") if key in found}
        return {key: each for key, each in found.items() if key not in ("pid", "error_file", "traceback")} | gone

    cleared: dict[str, Any] = json.loads(text, object_hook=without_places)
    return cleared


def main(source: Path, name: str, shows: str) -> None:
    """Write the case ``name``."""
    evidence = anonymous(json.loads(source.read_text()))
    evidence["ranks"] = [{**rank, "collectives": in_runs(rank.get("collectives", []))} for rank in evidence["ranks"]]
    case = {"shows": shows, "evidence": evidence, "expected": judged(evidence)}
    (CASES / f"{name}.json").write_text(written(case))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4])
