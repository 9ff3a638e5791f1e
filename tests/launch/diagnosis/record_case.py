"""Makes a case of ``test_judge_cases.py`` from a real run: ``python record_case.py EVIDENCE NAME "WHAT IT SHOWS"``.

``EVIDENCE`` is the ``attempt_<k>/evidence.json`` in the artifacts folder of a distributed trial that failed. What the
judge makes of it now is written as what is expected: read it before you commit it. Names of hosts, paths of this
machine and process ids are replaced.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from pytest_aorta.launch.diagnosis.evidence import TrialEvidence
from pytest_aorta.launch.diagnosis.judge import Judgement, judge

CASES = Path(__file__).with_name("cases")

#: Characters of a message that are compared: what comes after them may be long.
_COMPARED = 400


def expectation(found: Judgement) -> dict[str, Any]:
    """What is compared of a judgement."""
    failure, cleanup = found.failure, found.cleanup
    return {
        "blame": {str(record.rank): record.blame for record in found.ranks},
        "passed": {str(record.rank): record.passed for record in found.ranks},
        "failure": failure and _in_short(failure),
        "cleanup": cleanup and _in_short(cleanup),
        "location": found.location and found.location[:_COMPARED],
        "hung_rank": found.hung_rank,
    }


def _in_short(failure: Any) -> dict[str, Any]:
    keys = ("phase", "kind", "type", "signal", "exit_code", "rank", "confidence", "evidence")
    return {key: getattr(failure, key) for key in keys if getattr(failure, key) is not None} | {
        "message": failure.message[:_COMPARED]
    }


def anonymous(evidence: dict[str, Any]) -> dict[str, Any]:
    """Without what only this machine has; times begin at 1000."""
    hosts = sorted({rank["host"] for rank in evidence["ranks"] if rank["host"]})
    text = json.dumps(evidence)
    for number, host in enumerate(hosts):
        text = text.replace(json.dumps(host), f'"host{number}"')
    text = re.sub(r"(/[\w.+-]+)+/(lib/python3[.\d]*(/site-packages)?)/", r"/\2/", text)
    text = re.sub(r"/__w/pytorch/pytorch/", "", text)
    text = re.sub(r"(?<![\w.])(/[\w.+-]+)+/([\w-]+\.py)", r"/home/me/\2", text)
    found: dict[str, Any] = json.loads(text)
    times = [float(each) for each in re.findall(r"\b1\d{9}\.\d+", text)]
    return _shifted(found, min(times, default=1000.0) - 1000.0) if times else found


def _shifted(value: Any, by: float) -> Any:
    if isinstance(value, dict):
        return {
            key: _shifted(each, by) for key, each in value.items() if key not in ("pid", "error_file", "traceback")
        } | {key: None for key in ("pid", "error_file") if key in value}
    if isinstance(value, list):
        return [_shifted(each, by) for each in value]
    if isinstance(value, float) and value > 1e9:
        return round(value - by, 6)
    return value


def main(source: Path, name: str, shows: str) -> None:
    """Write the case ``name``."""
    evidence = anonymous(json.loads(source.read_text()))
    expected = expectation(judge(TrialEvidence.from_json(json.dumps(evidence))))
    case = {"shows": shows, "evidence": evidence, "expected": expected}
    CASES.mkdir(exist_ok=True)
    (CASES / f"{name}.json").write_text(json.dumps(case, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4])
