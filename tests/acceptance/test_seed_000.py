"""Seed 000: AORTA's ``aorta run`` (B1.0, the contract, and B1.1, the implementation), criterion by criterion.

Everywhere, ``aorta run --workload X --trials N --environment E --mitigations a,b --extra-env K=V --collect r --steps S
--results-dir D`` is ``pytest --aorta-workload X --aorta-trials N --aorta-environment E --aorta-mitigations a,b ...``.

Names, the order of variables, and how trials fail are shown in ``tests/plugin``; here is what no other test shows.
"Exits non-zero" is pytest's exit code 4 (usage) for what prevents every trial, and 1 when trials failed. Bare
``aorta run`` refuses a distributed workload; here it starts the ranks itself, and the refusal holds where pytest is a
rank already (``torchrun``, or ``--aorta-launcher external``). A ``venv`` or a ``launcher`` is acted on
(``test_environments.py``); docker images and ROCm versions are labels. docs/guides/aorta.md has all differences.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.fake_distributions import write_distribution
from support.stage import Stage, counts, text

from pytest_aorta import Execution, Limits, RunRequest, TrialResult, run_trials
from pytest_aorta.launch.launch_mode import LaunchModeError
from pytest_aorta.settings import RequestError

HERE = Path(__file__).parent


@pytest.fixture
def simple(stage: Stage) -> Stage:
    stage.copy(HERE / "simple_workloads.py")
    names = ("Tells", "Plays", "Solo", "Pair")
    stage.register(**{name.lower(): f"simple_workloads:{name}" for name in names})
    return stage


@pytest.fixture
def here(simple: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The same for ``run_trials()`` in this process."""
    monkeypatch.syspath_prepend(simple.path)
    monkeypatch.chdir(simple.path)
    return simple


def test_run_request_is_frozen_and_has_the_defaults_of_the_contract() -> None:
    request = RunRequest(workload="fsdp", trials=2)
    assert (request.environment, request.mitigations, dict(request.extra_env)) == ("local", ("none",), {})
    assert (request.steps, dict(request.config_overrides), request.results_dir) == (None, {}, Path("results"))
    with pytest.raises(AttributeError):
        request.trials = 3  # type: ignore[misc]


def test_the_environment_is_probed_once_per_trial_by_a_call_in_the_trial_itself(simple: Stage) -> None:
    assert simple.run_here("--aorta-workload", "tells", "--aorta-trials", "3").ret == 0
    trials = list(simple.trials().values())
    probed = [trial["env"]["process"]["pid"] for trial in trials]
    assert probed == [trial["result"]["metrics"]["pid"] for trial in trials]
    assert len(set(probed)) == 3
    assert len({trial["env"]["captured_at"] for trial in trials}) == 3
    assert not any(trial["env"]["partial"] for trial in trials)


def test_run_trials_returns_a_result_per_trial_and_writes_files(here: Stage) -> None:
    before = dict(os.environ)
    request = RunRequest(
        workload="tells",
        trials=2,
        mitigations=("tf32_off",),
        extra_env={"EXTRA": "1"},
        config_overrides={"show": "DISABLE_TF32,EXTRA", "size": 7},
        results_dir=here.path / "elsewhere",
    )
    results = run_trials(request)
    assert [type(result) for result in results] == [TrialResult, TrialResult]
    assert [result.trial_id for result in results] == ["tells_d0_m0_t0", "tells_d0_m0_t1"]
    assert here.files("elsewhere") == ["tells/trial_0.json", "tells/trial_1.json"]
    assert [result.to_dict() for result in results] == list(here.trials("elsewhere").values())
    assert results[0].result.metrics["variables"] == {"DISABLE_TF32": "1", "EXTRA": "1"}
    assert results[0].config == {"show": "DISABLE_TF32,EXTRA", "size": 7}
    assert dict(os.environ) == before


def test_run_trials_does_not_raise_for_what_a_trial_does(here: Stage) -> None:
    parts = ["raises", "returns_false", "hangs", "segfaults", "setup_raises", "passes"]
    request = RunRequest("plays", len(parts), limits=Limits(timeout=4), config_overrides={"script": ".".join(parts)})
    statuses = [result.exit_status for result in run_trials(request)]
    failed = "workload_failed"
    assert statuses == [failed, failed, "timeout", failed, "infrastructure_failed", "ok"]
    assert list(here.statuses().values()) == statuses


@pytest.mark.slow
def test_run_trials_raises_for_a_launch_that_prevents_every_trial(here: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LaunchModeError, match="workload pair requires WORLD_SIZE >= 2"):
        run_trials(RunRequest("pair", 1, execution=Execution(launcher="external")))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(LaunchModeError, match="workload solo is single_process; do not wrap with torchrun"):
        run_trials(RunRequest("solo", 1))
    assert not list(here.path.glob("setup_*"))
    assert not here.results.exists()


def test_run_trials_raises_for_an_import_that_fails_in_every_trial(here: Stage) -> None:
    here.write(broken="import nothing_of_the_kind\n")
    here.register(broken="broken:Any", gone="simple_workloads:Gone")
    for name, message in (("broken", "No module named 'nothing_of_the_kind'"), ("gone", "simple_workloads has no")):
        with pytest.raises(RequestError, match=f"workload '{name}' cannot be imported: {message}"):
            run_trials(RunRequest(name, 2))
    assert set(here.statuses().values()) == {"infrastructure_failed"}


@pytest.mark.slow
def test_distributed_workloads_need_enough_ranks(simple: Stage) -> None:
    done = simple.run("--aorta-workload", "pair", env={"WORLD_SIZE": "1", "RANK": "0"})
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    message = (
        "workload pair requires WORLD_SIZE >= 2 (got 1); launch with "
        "torchrun --nproc_per_node=2 -m pytest --aorta-workload pair"
    )
    assert [line for line in done.stderr.str().splitlines() if message in line], text(done)
    assert "Traceback (most recent call last)" not in done.stdout.str()
    assert not list(simple.path.glob("setup_*"))
    assert simple.files() == []


#: Of a package that imports nothing of this one: a result with the least fields, and one with all that AORTA's has.
PLUGIN = """
import os
from dataclasses import dataclass

MODE_FAST, ENVIRONMENT = {"PLUGIN_MODE": "fast"}, {"env": {"PLUGIN_ENV": "1"}}

@dataclass
class EchoResult:
    passed: bool
    metrics: dict

class Echo:
    def __init__(self, config): self.config = config
    def setup(self): pass
    def run(self): return EchoResult(True, {"PLUGIN_MODE": os.environ.get("PLUGIN_MODE")})

@dataclass
class LegacyResult:
    passed: bool
    failure_count: int
    first_failure_iteration: int | None
    failure_details: list
    total_iterations: int
    step_times_ms: list
    elapsed_sec: float
    metrics: dict
    main_work_started: bool | None
    executed_iterations: int | None
    configured_iterations: int | None

class Legacy(Echo):
    def run(self):
        steps = self.config["steps"]
        return LegacyResult(
            True, 0, None, [], steps, [1.0] * steps, steps / 1000, super().run().metrics, True, steps, steps
        )
"""


def test_workloads_of_another_package_are_found_and_run(stage: Stage) -> None:
    entry_points = {
        "aorta.workloads": {"plugin_echo": "plugin:Echo", "plugin_legacy": "plugin:Legacy"},
        "aorta.mitigations": {"plugin_mode_fast": "plugin:MODE_FAST", "plugin_broken": "broken:MITIGATION"},
        "aorta.environments": {"plugin_env": "plugin:ENVIRONMENT"},
    }
    modules = {"plugin": PLUGIN, "broken": "raise ImportError('libplugin_broken.so: cannot open shared object file')"}
    write_distribution(stage.path, "aorta-test-plugin", entry_points, modules)
    options = ("--aorta-mitigations", "plugin_mode_fast", "--aorta-environment", "plugin_env", "--aorta-steps", "2")
    done = stage.run_here("--aorta-workload", "plugin_echo", "--aorta-workload", "plugin_legacy", *options)
    assert (done.ret, counts(done)) == (0, {"passed": 2}), text(done)
    assert stage.files() == ["plugin_echo/trial_0.json", "plugin_legacy/trial_0.json"]
    for path, trial in stage.trials().items():
        assert trial["workload"] == path.partition("/")[0]
        assert trial["mitigations_applied"] == ["plugin_mode_fast"]
        assert trial["execution_env"]["name"] == "plugin_env"
        assert trial["execution_env"]["source_package"] == "aorta-test-plugin"
        assert trial["env"]["env_vars"].items() >= {"PLUGIN_MODE": "fast", "PLUGIN_ENV": "1"}.items()
        assert trial["result"]["metrics"]["PLUGIN_MODE"] == "fast"
    legacy = stage.trial("plugin_legacy/trial_0.json")["result"]
    assert (legacy["total_iterations"], legacy["step_times_ms"], legacy["main_work_started"]) == (2, [1.0, 1.0], True)
