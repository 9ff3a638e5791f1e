"""Real trials, without pytest around them: their records are complete and fit the published schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from pytest_aorta.launch.environment import Inherited, TrialOrder
from pytest_aorta.launch.host.allocation import Allocation
from pytest_aorta.launch.host.cell_zygotes import CellZygotes
from pytest_aorta.launch.host.place import TemporaryFolders
from pytest_aorta.launch.host.process_trial import ProcessTrial
from pytest_aorta.registry import Environment, WorkloadEntry
from pytest_aorta.trials.result import TrialResult
from pytest_aorta.trials.spec import TrialSpec

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "trial_result.schema.json").read_text())

WORKLOADS = """
import os, signal, socket, time
from types import SimpleNamespace

class Base:
    def __init__(self, config): self.config = config
    def setup(self): ...

class Passes(Base):
    def run(self):
        return {"passed": True, "metrics": {"loss": float("nan"), "label": "NaN"}, "step_times_ms": [1, 2.5]}

class Odd(Base):
    def run(self):
        cycle = []
        cycle.append(cycle)
        metrics = {"cycle": cycle, "thing": object(), 1: "a", "1": "b", "big": 10**5000, "caf\\udce9": "\\udce9"}
        return SimpleNamespace(passed=False, failure_count=1.5, step_times_ms=None, metrics=metrics)

class Raises(Base):
    def run(self):
        raise ValueError("not unicode: \\udce9")

class Crashes(Base):
    def setup(self):
        os.kill(os.getpid(), signal.SIGSEGV)
    def run(self): ...

class RankIsKilled(Base):
    launch_mode = "distributed"
    min_world_size = 2
    def run(self):
        try:
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        except Exception as error:
            return {"passed": True, "metrics": {"swallowed": repr(error)}}

class Garbles(Base):
    def run(self):
        for fd in range(3, 256):
            try:
                end = socket.socket(fileno=os.dup(fd))
            except OSError:
                continue
            with end:
                if end.type == socket.SOCK_SEQPACKET:
                    for text in ('{"type": "nonsense"}', '{"type": "end", "phase": 3}', '{"a": 1}'):
                        end.send(text.encode())
        return {"passed": True}

class Leaves(Base):
    def run(self):
        os.closerange(3, 256)
        return {"passed": True}
"""


@pytest.fixture(scope="module")
def zygotes() -> Iterator[CellZygotes]:
    zygotes = CellZygotes()
    yield zygotes
    zygotes.close()


def live(zygotes: CellZygotes, folder: Path, name: str) -> TrialResult:
    """One trial of a class of the file above."""
    source = folder / "workloads.py"
    source.write_text(WORKLOADS)
    spec = TrialSpec(
        workload=WorkloadEntry(name, f"{source}:{name}", "test"),
        environment=Environment("local", source_package="test"),
        mitigations=("none",),
        overlay={"AORTA_TEST_VARIABLE": "1"},
        environment_index=0,
        mitigation_index=0,
        trial_index=0,
    )
    temporary = TemporaryFolders()
    order = TrialOrder(spec, folder / name / "trial_0", Inherited.now())
    trial = ProcessTrial(order, Allocation(), zygotes, temporary)
    trial.start()
    record = trial.finish()
    temporary.close()
    return record


@pytest.mark.parametrize(
    ("name", "status", "failure"),
    [
        ("Passes", "ok", None),
        ("Garbles", "ok", None),
        ("Odd", "workload_failed", ("run", "result")),
        ("Raises", "workload_failed", ("run", "exception")),
        ("Crashes", "infrastructure_failed", ("setup", "signal")),
        ("Leaves", "workload_failed", ("run", "exit_code")),
    ],
)
def test_the_record_of_a_real_trial_fits_the_schema_and_comes_back(
    zygotes: CellZygotes, tmp_path: Path, name: str, status: str, failure: tuple[str, str] | None
) -> None:
    record = live(zygotes, tmp_path, name)

    text = json.dumps(record.to_dict(), allow_nan=False)
    jsonschema.validate(json.loads(text), SCHEMA)
    again = TrialResult.from_dict(json.loads(text))
    assert again.to_dict() == record.to_dict()
    assert record.exit_status == status
    assert (None if record.failure is None else (record.failure.phase, record.failure.kind)) == failure


def test_a_nan_and_the_text_nan_stay_apart_on_the_way_to_the_file(zygotes: CellZygotes, tmp_path: Path) -> None:
    record = live(zygotes, tmp_path, "Passes")

    assert record.to_dict()["result"]["metrics"] == {"loss": "NaN", "label": "\\NaN"}
    assert record.env["env_vars"]["AORTA_TEST_VARIABLE"] == "1"


def test_what_could_not_be_kept_is_said_in_the_record(zygotes: CellZygotes, tmp_path: Path) -> None:
    result = live(zygotes, tmp_path, "Odd").result

    assert result.metrics["1_"] == "b"
    assert result.failure_count is None
    notes = " ".join(detail["note"] for detail in result.failure_details)
    for place in ("metrics.cycle", "metrics.thing", "metrics.big", "failure_count"):
        assert place in notes


def test_a_rank_that_the_kernel_kills_is_the_cause_and_its_peers_are_ended_at_once(
    zygotes: CellZygotes, tmp_path: Path
) -> None:
    record = live(zygotes, tmp_path, "RankIsKilled")

    assert record.exit_status == "workload_failed"
    assert record.failure is not None
    assert (record.failure.rank, record.failure.signal) == (1, "SIGKILL")
    assert [rank.collateral for rank in record.ranks] == [True, False]
    assert record.result.metrics == {}
