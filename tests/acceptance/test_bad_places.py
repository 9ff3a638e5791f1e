"""A fault of a device, or of a node, is told from the effect of a mitigation."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from support.devices import names_devices
from support.slurm import Slurm
from support.slurm_steps import SubmittingStage
from support.stage import Stage, text

pytestmark = pytest.mark.usefixtures("as_users_have_it")

#: Fails on device 0, and on node n1.
WORKLOAD = """
import os, random, socket, time

class Steady:
    def __init__(self, config):
        pass
    def setup(self):
        pass
    def run(self):
        time.sleep(0.02 * random.random())
        is_bad = os.environ.get("CUDA_VISIBLE_DEVICES") == "0" or socket.gethostname() == "n1"
        return {"passed": not is_bad}
"""


def by_place(stage: Stage, results: str, place: Any) -> Counter[tuple[str, Any]]:
    return Counter((trial["cell"], place(trial)) for trial in stage.trials(results).values())


@pytest.fixture
def steady(stage: Stage) -> Stage:
    stage.write(steady=WORKLOAD)
    stage.register(steady="steady:Steady")
    return stage


@pytest.mark.slow
@names_devices
def test_a_bad_device_is_named_and_no_mitigation(steady: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    options = ("--aorta-trials", "16", "--aorta-mitigations", "none", "--aorta-mitigations", "omp_1")
    result = steady.run("--aorta-workload", "steady", *options, "--aorta-slots", "2", "--aorta-devices", "0,1")
    result.stdout.fnmatch_lines(["*failures on GPU 0: suspect the device, not the variables*"])
    assert "fixes" not in text(result)
    found = json.loads((steady.results / "matrix.json").read_text())
    kinds = {cell["cell"]: cell["verdict"]["kind"] for cell in found["cells"]}
    assert kinds["local-none"] == "baseline"
    assert kinds["local-omp_1"] not in ("fixes", "reduces", "worse", "exchanges")

    devices = by_place(steady, "results", lambda trial: tuple(trial["imposed"]["devices"]))
    assert {device for _, device in devices} == {(0,), (1,)}
    assert all(abs(devices["local-none", it] - devices["local-omp_1", it]) <= 6 for it in ((0,), (1,)))
    assert {trial["side_by_side"]["slot"] for trial in steady.trials().values()} == {0, 1}


SWEEP = """
[[action]]
name = "sweep"
workload = "steady"
each = "node"
trials = 10
resources.walltime.per_submission = "00:05:00"
"""


@pytest.mark.slow
def test_a_sweep_runs_on_each_node_and_names_the_one_to_drain(steady: Stage, slurm: Slurm) -> None:
    """A node that is drained is left out, and added by a later submission."""
    steady.write_file("aorta.toml", SWEEP)
    jobs = SubmittingStage(steady, slurm)
    jobs.stage.register(steady="steady:Steady")
    slurm.command("scontrol", "update", "nodename=n1", "state=drain", "reason=test")
    jobs.submit().stdout.fnmatch_lines(["sweep: 1 job (10 trials) on slurm, *"])
    slurm.command("scontrol", "update", "nodename=n1", "state=resume")
    slurm.wait_for_nodes("idle", nodes=["n1"])
    jobs.submit().stdout.fnmatch_lines(["sweep: 1 job (10 trials) on slurm, *, 10 *"])
    jobs.wait_for_end()
    assert by_place(steady, "workspace", lambda trial: trial["host"]) == {
        ("local-none", "n0"): 10,
        ("local-none", "n1"): 10,
    }

    named = "n1: 10 of 10 trials did not pass, 0 of 10 on the others (p < 0.0001)"
    jobs.pytest("aorta.toml").stdout.fnmatch_lines([named, "to drain: n1"])
    shown = jobs.command("show", "nodes").splitlines()
    assert [line.split()[:3] for line in shown[1:3]] == [["n0", "10", "0"], ["n1", "10", "10"]]
    assert shown[-2:] == [named, "to drain: n1"]
    assert json.loads(jobs.command("show", "nodes", "--json"))["drain"] == ["n1"]
