"""Real runs, recorded once by ``record_case.py``, and judged again. A file says in ``shows`` what it is about.

Files named ``double_*`` are no runs: they hold texts of torch's sources, of libraries that no machine here has.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from record_case import CASES, expectation

from pytest_aorta.launch.diagnosis.evidence import TrialEvidence
from pytest_aorta.launch.diagnosis.judge import judge

#: The repository, the folder of temporary files, and the user's own, by every name that they have here.
OF_THIS_MACHINE = {
    str(name)
    for folder in (Path(__file__).parents[3], Path("/tmp"), Path(tempfile.gettempdir()), Path.home())
    for name in (folder, folder.resolve())
    if len(name.parts) > 1
}

#: Takes the place of the folders of files, in ``record_case.py``.
ANONYMOUS = "/home/me/"


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_what_is_made_of_a_real_run(path: Path) -> None:
    case: dict[str, Any] = json.loads(path.read_text())

    found = judge(TrialEvidence.from_json(json.dumps(case["evidence"])))

    assert expectation(found) == case["expected"]


def test_there_are_enough() -> None:
    assert len(list(CASES.glob("*.json"))) >= 40


def test_no_case_names_a_machine() -> None:
    for path in CASES.glob("*.json"):
        text = path.read_text()
        for folder in OF_THIS_MACHINE:
            assert f"{folder}/" not in text.replace(ANONYMOUS, ""), path.name
