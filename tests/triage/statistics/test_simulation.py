"""The simulation of docs/statistics.md judges as the package does."""

from __future__ import annotations

import re
from math import log
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulate_triage import main
from benchmarks.simulated_triages import Watched, ever_called, fixed_verdicts, outcomes
from pytest_aorta.triage.sequential import SequentialTest

PAGE = Path(__file__).parents[3] / "docs" / "statistics.md"


def test_many_triages_at_once_have_the_numbers_of_one_by_one() -> None:
    failed = outcomes(np.random.default_rng(2), [0.1, 0.0, 0.05, 0.6], 6, 80)
    watched = Watched(6, 3)
    tests = [[SequentialTest(0.1) for _ in range(3)] for _ in range(6)]
    for trial in range(80):
        watched.add(failed[:, :, trial])
        for triage, row in enumerate(tests):
            for cell, test in enumerate(row):
                test.extend([bool(failed[triage, 0, trial])], [bool(failed[triage, 1 + cell, trial])])
        if trial % 8 == 7:
            found = [[test.comparison() for test in row] for row in tests]
            np.testing.assert_allclose(watched.p_values(), [[each.p for each in row] for row in found], rtol=1e-9)
            assert watched.within_margin().tolist() == [
                [each.interval.within(-0.1, 0.1) for each in row] for row in found
            ]


def test_no_effect_is_rarely_called_one() -> None:
    failed = outcomes(np.random.default_rng(4), [0.3] * 8, 300, 20)
    assert sum("fixes" in kinds or "reduces" in kinds for kinds in ever_called(failed)) / 300 < 0.05
    assert sum("fixes" in kinds or "reduces" in kinds for kinds in fixed_verdicts(failed)) / 300 < 0.05


def test_the_page_shows_ten_thousand_triages_within_five_percent() -> None:
    table = PAGE.read_text().partition("<!-- simulation: no effect -->")[2].partition("<!-- end")[0]
    assert "10,000 triages of 8 cells x 20 trials" in table
    rows = [re.findall(r"[\d.]+(?= %)", line) for line in table.splitlines() if "%" in line]
    assert len(rows) == 5
    for row in rows:
        # What this package says: fixed, watched, and both.
        assert all(float(share) <= 5 for share in row[-5:])


@pytest.mark.slow
@pytest.mark.long
def test_the_tables_are_made_by_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "statistics.md"
    page.write_text(re.sub(r"(<!-- simulation: .*? -->).*?(<!-- end)", r"\1\n\2", PAGE.read_text(), flags=re.DOTALL))
    monkeypatch.setattr("sys.argv", ["simulate_triage", "--triages", "20", "--page", str(page), "--processes", "2"])
    assert main() == 0
    assert page.read_text().count("| 0.3 ") == PAGE.read_text().count("| 0.3 ")
    assert log(page.stat().st_size / PAGE.stat().st_size) == pytest.approx(0, abs=0.1)
