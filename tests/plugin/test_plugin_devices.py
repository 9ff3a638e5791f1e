"""``--aorta-devices``: a trial has devices of its own for as long as it runs, also beside other runs on this host.

No machine that runs these tests need have a GPU: the ids are names only, and what is shown is who holds which.
"""

from __future__ import annotations

import pytest
from support.devices import names_devices
from support.neighbourhood import metrics, notes, workloads
from support.stage import Stage

pytestmark = names_devices

VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@pytest.mark.slow
def test_trial_finds_its_devices_in_its_variables(beside: Stage) -> None:
    options = ("--aorta-devices", "2,4-5", "--aorta-slots", "auto")
    result = beside.run_here(*workloads("tells", "pair"), "--aorta-trials", "2", *options, "-k", "tells or none-0")
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.fnmatch_lines(["aorta: plan *, 3 slots, devices 2,4-5 (names only: there is no GPU), results in *"])
    single = [trial for path, trial in beside.trials().items() if path.startswith("tells")]
    for trial in single:
        seen = trial["result"]["metrics"]
        assert seen["CUDA_VISIBLE_DEVICES"] in ("2", "4", "5")
        assert len({seen[name] for name in VARIABLES}) == 1
        assert trial["env"]["env_vars"]["ROCR_VISIBLE_DEVICES"] == seen["CUDA_VISIBLE_DEVICES"]
    pairs = [trial for path, trial in beside.trials().items() if path.startswith("pair")]
    assert [[rank["rank"] for rank in trial["ranks"]] for trial in pairs] == [[0, 1]]
    assert {trial["result"]["metrics"]["HIP_VISIBLE_DEVICES"] for trial in pairs} <= {"2,4", "2,5", "4,5"}
    assert beside.left_running() == []


def test_what_is_said_for_trials_wins_and_what_pytest_has_does_not(
    beside: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "7")
    beside.write_registry(mitigations={"mine": {"HIP_VISIBLE_DEVICES": "8"}})
    options = ("--aorta-registry-file", "registry.json", "--aorta-mitigations", "mine", "--aorta-devices", "3")
    beside.run_here(*workloads("tells"), *options, "--aorta-extra-env", "CUDA_VISIBLE_DEVICES=9").assert_outcomes(
        passed=1
    )
    assert [metrics(beside)[0][name] for name in VARIABLES] == ["9", "8", "3"]
    # Without the option, devices are left alone.
    beside.run_here(*workloads("tells")).assert_outcomes(passed=1)
    assert [metrics(beside)[0][name] for name in VARIABLES] == ["7", "7", "7"]


@pytest.mark.slow
def test_devices_of_a_killed_pytest_are_free(beside: Stage) -> None:
    options = ("--aorta-trials", "2", "--aorta-devices", "0-1", "--aorta-slots", "2")
    first = beside.start(*workloads("keeps"), *options)
    beside.wait_until(lambda: notes(beside, "keeps") == 2)
    beside.write(conftest="import neighbours\ndef pytest_sessionstart(): neighbours.note('begun')")
    second = beside.start(*workloads("holds"), *options)
    beside.wait_until(lambda: notes(beside, "begun") == 1)
    assert notes(beside, "started-Holds") == 0
    first.kill()
    first.communicate(timeout=60)
    # It gets them when those who used them have gone, and not before.
    output = second.communicate(timeout=60)[0].decode()
    assert second.returncode == pytest.ExitCode.OK, output
    assert beside.statuses() == {"holds/trial_0.json": "ok", "holds/trial_1.json": "ok"}
    beside.wait_until(lambda: not beside.left_running())


@pytest.mark.slow
def test_more_ranks_than_devices_are_refused_before_anything_starts(beside: Stage) -> None:
    result = beside.run_here(*workloads("tells", "pair"), "--aorta-devices", "0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines == [
        "ERROR: workload pair needs 2 devices, one per rank, but --aorta-devices 0 gives 1",
        "",
    ]
    assert beside.files() == []
    assert not list((beside.path / "notes").glob("started*"))
    assert beside.left_running() == []
