"""What a record says: of how a trial went, wherever it broke off; how it was run; and what its environment claims."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from hypothesis import event as note
from hypothesis import example, given
from hypothesis import strategies as st
from support.plans import SPEC

from pytest_aorta.launch.environment import Inherited, PreparedCell, WorkloadInfo
from pytest_aorta.launch.launch_mode import LaunchPlan
from pytest_aorta.launch.record import build_record, check_claims, overall, request_of, warning_of
from pytest_aorta.probe.collect import EnvSnapshot
from pytest_aorta.registry import Environment
from pytest_aorta.trials.execution import ElasticOptions, Execution, Limits, Resources
from pytest_aorta.trials.lifecycle import failure_of
from pytest_aorta.trials.outcome import Observation, conclude
from pytest_aorta.trials.records import Failure, Phase, RankRecord, ResultRecord
from pytest_aorta.trials.result import ExitStatus, Request, RequestedEnvironment, TrialResult
from pytest_aorta.trials.workload import read_result

Event = Any  # as it comes through a channel

INFO = WorkloadInfo(
    launch_mode="single_process",
    min_world_size=1,
    result_scope="global",
    timeout_sec=None,
    source=None,
    sources={"w.py": "digest"},
    config={"lr": float("nan")},
)
CELL = PreparedCell(INFO, LaunchPlan("single"))

errors = st.sampled_from(
    [ValueError("x"), KeyboardInterrupt(), SystemExit(3), SystemExit("no licence"), SystemExit(10**5000), OSError(28)]
)
returned = st.fixed_dictionaries(
    {"passed": st.booleans()},
    optional={
        "failure_count": st.integers() | st.text(max_size=3) | st.floats(),
        "first_failure_iteration": st.none() | st.integers(),
        "failure_details": st.lists(st.dictionaries(st.text(max_size=3), st.floats(), max_size=2), max_size=2),
        "step_times_ms": st.lists(st.floats() | st.text(max_size=3), max_size=3) | st.just("many"),
        "elapsed_sec": st.floats() | st.text(max_size=3),
        "metrics": st.dictionaries(st.text(max_size=3), st.floats() | st.integers(), max_size=2) | st.floats(),
        "main_work_started": st.booleans() | st.integers(),
        "executed_iterations": st.integers(0, 1),
        "configured_iterations": st.integers(0, 1),
    },
)
rank_failures = st.builds(
    lambda phase, kind, rank: Failure(phase=phase, kind=kind, rank=rank, message=f"rank {rank}"),
    st.sampled_from(["import", "setup", "run", "cleanup"]),
    st.sampled_from(["exception", "signal", "exit_code", "timeout", "result", "rank"]),
    st.integers(0, 1),
)


@st.composite
def lives(draw: st.DrawFn) -> list[Event]:
    """What a trial's process says of itself when it is not ended early."""
    progress = [{"type": "progress", "step": draw(st.integers(0, 9)), "total": draw(st.none() | st.just(9))}]
    said: list[Event] = []
    if draw(st.booleans()):  # a fresh interpreter
        if draw(st.booleans()):
            return [{"type": "failed", "error": {"type": "ImportError", "message": "no", "traceback": ""}}]
        said.append({"type": "prepared"})
    said.append({"type": "env", "env": {"env_vars": {}}})

    def phase(name: Phase, **news: Any) -> bool:
        failure = draw(st.none() | errors)
        end = {"failure": failure_of(failure, name)} if failure is not None else news
        said.extend([{"type": "begin", "phase": name}, *progress, {"type": "end", "phase": name, "sec": 0.5, **end}])
        return failure is None

    if phase("setup"):
        phase("run", result=read_result(draw(returned)))
    if draw(st.booleans()):
        phase("cleanup")
    if draw(st.booleans()):
        failure = draw(st.none() | rank_failures)
        ranks = [
            RankRecord(rank, collateral=rank == 1, failure=failure if failure and failure.rank == rank else None)
            for rank in range(2)
        ]
        said.append({"type": "ranks", "ranks": ranks, "failure": failure, "cleanup": None})
    return [*said, {"type": "lived"}]


def observe(life: list[Event], heard: int, deadline: int | None) -> Observation:
    """The first ``heard`` events of a life, the deadline having passed before event ``deadline``."""
    seen = Observation(phase="launch", timeout=30.0)
    for index, event in enumerate(life[:heard]):
        seen.timed_out = seen.timed_out or deadline == index
        seen.see(event)
    return seen


def checked(seen: Observation) -> tuple[TrialResult, ExitStatus]:
    """The record, which goes to JSON and back without loss, and its status."""
    status, failure = conclude(seen)
    record = build_record(SPEC, seen, CELL, started_at="now")
    data = json.loads(json.dumps(record.to_dict(), allow_nan=False))

    assert TrialResult.from_dict(data).to_dict() == record.to_dict()
    assert record.exit_status == status
    assert status in get_args(ExitStatus)
    if status == "ok":
        assert record.result.passed
        assert record.failure is None or record.failure.phase in ("cleanup", "exit")
    else:
        assert failure is not None
        assert record.failure is not None
        assert record.failure.message or record.failure.type
        assert status == "timeout" or record.failure.kind not in ("timeout", "stall")
        assert not record.result.passed
    if seen.rank_failure is not None:
        assert (record.result.failure_count or 0) >= 1
        assert seen.rank_failure.rank in [detail.get("rank") for detail in record.result.failure_details]
    return record, status


@given(
    lives(),
    st.integers(0, 20),
    st.none() | st.integers(0, 20),
    st.sampled_from([0, 3, -11, None]),
    st.booleans(),
)
@example([], 0, None, None, True)
def test_every_end_of_every_life_has_a_record(
    life: list[Event], heard: int, deadline: int | None, returncode: int | None, lost: bool
) -> None:
    seen = observe(life, heard, deadline)
    seen.returncode = returncode
    if lost:
        seen.lost = Failure(phase=seen.phase, kind="signal", signal="SIGKILL", message="its host process died")

    record, status = checked(seen)

    note(status)
    if lost and seen.result is None:
        assert status == "infrastructure_failed"
    # What came before the work is never blamed on the workload.
    if record.failure is not None and record.failure.phase in ("launch", "import", "setup") and seen.result is None:
        assert status in ("infrastructure_failed", "timeout")
    if status == "workload_failed":
        assert record.failure is not None
        assert record.failure.phase in ("run", "cleanup") or seen.result is not None


PHASES: tuple[Phase, ...] = get_args(Phase)


@given(
    phase=st.sampled_from(PHASES),
    returncode=st.sampled_from([0, 3, -11, -200, None]),
    timed_out=st.booleans(),
    lost=st.booleans(),
    passed=st.sampled_from([None, False, True]),
)
def test_no_combination_is_without_a_record(
    phase: Phase, returncode: int | None, timed_out: bool, lost: bool, passed: bool | None
) -> None:
    """Also those that should not be possible: if one occurs, its record is needed most."""
    seen = Observation(phase=phase, returncode=returncode, timed_out=timed_out)
    if passed is not None:
        seen.result = ResultRecord(passed)
        seen.phase = "cleanup"
    if lost:
        seen.lost = Failure(phase=seen.phase, kind="signal", message="its host process died")

    _, status = checked(seen)

    if passed is not None:
        assert status == ("ok" if passed else "workload_failed")
    elif lost:
        assert status == "infrastructure_failed"
    elif timed_out:
        assert status == "timeout"


# How a trial was run.

INHERITED = Inherited({"FLAG": "ambient", "HF_TOKEN": "canary"}, "/here", ("/added", f"{sys.prefix}/lib/x"))


def of(seed: int | None = None, timeout: float | None = None, **changed: object) -> Request:
    return request_of(replace(SPEC, **changed), INHERITED, seed=seed, timeout=timeout)  # type: ignore[arg-type]


def test_every_field_of_an_environment_but_its_variables_is_requested() -> None:
    assert set(RequestedEnvironment.model_fields) == {field.name for field in fields(Environment)} - {"env"}


def test_secrets_are_named_and_left_out() -> None:
    request = of(
        overlay={"API_KEY": "canary", "CACHE": "redis://u:canary@h", "FLAG": "on"},
        watched=("FLAG", "HF_TOKEN", "OTHER"),
        environment=Environment("e", launcher=("env", "A_TOKEN=canary", "--key", "canary"), source_package="test"),
        resources=Resources(hosts=("ssh=gpu7//env:TOKEN=canary",)),
    )

    assert request.overlay == {"API_KEY": "<redacted>", "CACHE": "<redacted>", "FLAG": "on"}
    assert request.ambient["FLAG"] == "ambient"
    assert request.ambient["HF_TOKEN"] == "<redacted>"
    assert request.ambient["OTHER"] is None
    assert request.environment.launcher == ["env", "A_TOKEN=<redacted>", "--key", "<redacted>"]
    assert request.resources.hosts == ("ssh=gpu7//env:TOKEN=...",)
    assert "canary" not in request.model_dump_json()


def test_a_deadline_that_overrides_is_the_one_that_counts() -> None:
    assert of(limits=Limits(timeout=5)).limits.timeout == 5
    assert of(limits=Limits(timeout=5), timeout=2).limits.timeout == 2


def test_the_seed_is_the_given_one_else_that_of_the_request() -> None:
    assert of().seed is None
    assert of(seed=3).seed == 3
    seeded = replace(SPEC, execution=Execution(seed=7))
    assert request_of(seeded, INHERITED).seed == seeded.seed
    assert request_of(seeded, INHERITED).run_seed == 7


def test_of_the_agent_s_options_those_are_kept_that_were_given() -> None:
    execution = Execution(elastic=ElasticOptions(max_restarts=2, nnodes=(1, 2)))

    assert of().elastic == {}
    assert of(execution=execution).elastic == {"max_restarts": 2, "nnodes": [1, 2]}


def test_folders_of_the_interpreter_are_not_listed() -> None:
    request = of()

    assert (request.interpreter, request.cwd, request.sys_path) == (sys.executable, "/here", ["/added"])
    venv = of(environment=Environment("v", venv="/venv", source_package="test"))
    assert (venv.interpreter, venv.sys_path) == ("/venv/bin/python", [])


# What its environment claims, against what the trial has seen.

DIGEST = "sha256:" + "a" * 64


def environment(**fields: Any) -> Environment:
    return Environment("e", source_package="test", **fields)


def verified(claimed: Environment, env: dict[str, Any], digest: str | None = None) -> bool | None:
    return overall(check_claims(claimed, env, digest))


def within(**container: Any) -> dict[str, Any]:
    return {"runtime_context": {"container": {"kind": "podman", "image": None, "image_id": None, **container}}}


HOST = {"runtime_context": {"container": None}, "torch": {"hip": None}, "accelerator": {"rocm": None}}
UNKNOWN = EnvSnapshot.unavailable("it died").to_dict()


def test_an_image() -> None:
    cases: list[tuple[str, dict[str, Any], bool | None, str]] = [
        ("lab/x", HOST, False, "the trial ran in no container"),
        ("lab/x", UNKNOWN, None, "it is not known"),
        ("lab/x", within(kind="docker"), None, "in a docker container, which does not show its image"),
        ("lab/x", within(image="docker.io/lab/x:latest"), True, "of this image"),
        ("lab/x", within(image="localhost/lab/x:latest"), True, "of this image"),
        ("ubuntu:24.04", within(image="docker.io/library/ubuntu:24.04"), True, "of this image"),
        ("lab/x:2", within(image="docker.io/lab/x:1"), False, "container of docker.io/lab/x:1"),
        ("lab/x@sha256:1", within(image="docker.io/lab/x@sha256:1"), True, "of this image"),
        ("lab/x@sha256:1", within(image="docker.io/lab/x@sha256:2"), False, "of docker.io/lab/x@sha256:2"),
        ("lab/x:1", within(image="docker.io/lab/x@sha256:2"), None, "of docker.io/lab/x@sha256:2"),
        ("localhost:5000/x", within(image="localhost:5000/x:latest"), True, "of this image"),
        ("/images/x.sif", within(kind="singularity", image="/images/../images/x.sif"), True, "of this image"),
        ("/images/x.sif", within(kind="singularity", image="/images/y.sif"), False, "of /images/y.sif"),
    ]
    for image, env, expected, finding in cases:
        claimed = environment(docker=image)
        [claim] = check_claims(claimed, env)

        assert (claim.claim, claim.verified) == (f"image {image}", expected)
        assert finding in claim.found
        assert (warning_of(claimed, [claim]) is None) == (expected is not False)


def test_the_id_of_an_image_counts_more_than_its_name_and_for_an_entered_one_any_container_will_do() -> None:
    env = within(image="lab/x:latest", image_id="a" * 64)
    assert verified(environment(docker="lab/renamed"), env, DIGEST) is True
    assert verified(environment(docker="lab/x"), env, "sha256:" + "b" * 64) is False

    entered = environment(docker="lab/x", enter=True)
    assert verified(entered, within()) is True
    assert verified(entered, HOST) is None


def test_a_venv_by_the_prefix_of_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "link").symlink_to("venv")
    here = environment(venv=str(tmp_path / "link"))

    assert verified(here, {"python": {"prefix": str(tmp_path / "venv")}}) is True
    [other] = check_claims(here, {"python": {"prefix": "/usr"}})
    assert (other.verified, other.found) == (False, "the interpreter's prefix is /usr")
    assert verified(here, UNKNOWN) is None


def test_a_release_of_rocm() -> None:
    cases: list[tuple[str, str | None, str | None, bool]] = [
        ("7.0", "7.0.51831-a1b2c3", None, True),
        ("7.0.2", None, "7.0.2-115", True),
        ("rocm-7.0", None, "7.0.2-115", True),
        ("7.0.1", None, "7.0.2-115", False),
        ("7.0", "6.4.43482-x", "6.4.1-83", False),
        ("7.0", "7.0.51831", "6.4.1-83", True),
        ("7", None, "7.0.2-115", True),
        ("7.0", None, None, False),
    ]
    for claimed, hip, installed, expected in cases:
        rocm = None if installed is None else {"path": "/opt/rocm-x", "version": installed}

        [claim] = check_claims(environment(rocm=claimed), {"torch": {"hip": hip}, "accelerator": {"rocm": rocm}})

        assert claim.verified is expected
        assert (hip or installed or "there is no ROCm") in claim.found


def test_rocm_by_its_path_or_by_the_wheel_of_a_torch_that_was_not_imported(tmp_path: Path) -> None:
    (tmp_path / "rocm-7.0").mkdir()
    (tmp_path / "rocm").symlink_to("rocm-7.0")
    there = {"accelerator": {"rocm": {"path": str(tmp_path / "rocm-7.0"), "version": "7.0"}}}
    assert verified(environment(rocm=str(tmp_path / "rocm")), there) is True
    assert verified(environment(rocm="/opt/rocm-6"), there) is False

    def of(version: str, **more: Any) -> bool | None:
        return verified(environment(rocm="7.0"), {"torch": {"imported": False, "version": version}, **more})

    assert (of("2.9.0+rocm7.0"), of("2.9.0+rocm6.4"), of("2.9.0a0+git123")) == (True, False, None)
    assert of("2.9.0a0+git123", accelerator={"rocm": None}) is False
    assert verified(environment(rocm="7.0"), UNKNOWN) is None


def test_of_several_claims_a_false_one_decides_and_the_warning_has_it_alone() -> None:
    claims = environment(docker="lab/x", rocm="7.0")

    found = check_claims(claims, {**within(image="lab/x"), "torch": {"hip": "6.4"}})

    assert [claim.verified for claim in found] == [True, False]
    assert overall(found) is False
    assert warning_of(claims, found) == (
        "trials of the environment 'e' (test) do not run in it: ROCm 7.0: torch was built for HIP 6.4"
    )
    assert verified(claims, {**within(), "torch": {"hip": "7.0"}}) is None
    assert verified(environment(launcher=("nice",)), HOST) is None
