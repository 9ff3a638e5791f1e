"""A prepared cell survives serialisation, as between hosts."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import ValidationError

from pytest_aorta.launch.launch_mode import LaunchPlan
from pytest_aorta.launch.workload_info import PreparedCell, WorkloadInfo
from pytest_aorta.trials.fingerprint import Impositions

DESCRIPTION = {
    "launch_mode": "distributed",
    "min_world_size": 2,
    "result_scope": "rank_local",
    "timeout_sec": 3,
    "source": "w.py",
    "sources": {"w.py": "digest"},
    "config": {"lr": math.nan, "name": "NaN"},
    "config_error": None,
}


def test_a_prepared_cell_comes_back_from_strict_json() -> None:
    cell = PreparedCell(WorkloadInfo.model_validate(DESCRIPTION), LaunchPlan("elastic", 2), Impositions(threads=1))

    back = PreparedCell.from_plain(json.loads(json.dumps(cell.to_plain(), allow_nan=False)))

    assert (back.plan, back.imposes) == (cell.plan, cell.imposes)
    assert math.isnan(back.info.config["lr"])
    assert back.info.config["name"] == "NaN"
    assert back.info.model_dump(exclude={"config"}) == cell.info.model_dump(exclude={"config"})


def test_a_description_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValidationError, match="timeout_sec"):
        WorkloadInfo.model_validate({**DESCRIPTION, "timeout_sec": "soon"})
