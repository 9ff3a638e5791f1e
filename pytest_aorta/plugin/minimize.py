"""``pytest-aorta minimize``: one item per workload and environment, which runs the trials of a search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.common.texts import identifier
from pytest_aorta.plan import Plan, PlanError, Selection, check_variables, overlay
from pytest_aorta.plugin.compat import GeneratedFunction
from pytest_aorta.plugin.failures import TrialFailed
from pytest_aorta.plugin.ordinary_tests import in_a_process
from pytest_aorta.plugin.run import PAYLOAD, ReportPayload, SessionRun, reason_of, run_of
from pytest_aorta.plugin.trial_item import ModuleOf, UnimportedModule, use_fixtures
from pytest_aorta.registry import Mitigation
from pytest_aorta.triage.facts import TrialFacts, facts_of
from pytest_aorta.triage.minimize import Search, Wanted, conclusion, report
from pytest_aorta.workspace.paths import TrialPaths, trial_paths

if TYPE_CHECKING:
    from pytest_aorta.launch.engine import RunningTrial
    from pytest_aorta.trials.spec import TrialSpec


class Subsets:
    def __init__(self, baseline: TrialSpec, whole: TrialSpec, mitigations: list[Mitigation]) -> None:
        self._baseline = replace(baseline, execution=in_a_process(baseline.execution))
        self._whole = replace(whole, execution=in_a_process(whole.execution))
        #: Variable to its value and the mitigation that sets it; later mitigations win.
        self._values: dict[str, tuple[str, str]] = {}
        for mitigation in mitigations:
            for name, value in mitigation.env.items():
                self._values.pop(name, None)
                self._values[name] = value, mitigation.name
        #: Variables that the set changes, in its order.
        self.variables = tuple(name for name in self._values if baseline.overlay.get(name) != whole.overlay.get(name))
        self._numbers: dict[tuple[str, ...], int] = {self.variables: whole.mitigation_index}

    def spec(self, wanted: Wanted) -> TrialSpec:
        """A trial of the baseline, the whole set, or a part: ``eight.OMP_NUM_THREADS+eight.MKL_NUM_THREADS``."""
        variables = wanted.variables
        if variables is None:
            return replace(self._baseline, trial_index=wanted.index)
        if variables == self.variables:
            return replace(self._whole, trial_index=wanted.index)
        number = self._numbers.setdefault(variables, self._whole.mitigation_index + len(self._numbers))
        parts = [Mitigation(f"{self._values[name][1]}.{name}", {name: self._values[name][0]}, "") for name in variables]
        others = {name: value for name, value in self._whole.overlay.items() if name not in self.variables}
        return replace(
            self._whole,
            trial_index=wanted.index,
            mitigation_index=number,
            mitigations=tuple(part.name for part in parts),
            overlay={**overlay(self._whole.environment, parts, {}), **others},
        )


class MinimizeItem(GeneratedFunction):
    subsets: Subsets
    set_name: str
    spec: TrialSpec

    def runtest(self) -> None:
        """Run the trials of the search; report each wave when it ends, since the search may take hours."""
        __tracebackhide__ = True
        run = run_of(self.config)
        selection = run.selection
        self.stash[PAYLOAD] = ReportPayload()
        extra_env: Any = self.funcargs["aorta_extra_env"]
        try:
            check_variables("the fixture aorta_extra_env", extra_env)
        except PlanError as error:
            raise TrialFailed(str(error)) from None
        search = Search(self.subsets.variables, selection.trials, selection.max_trials, selection.resources.total_slots)
        steps = search.steps()
        wanted = next(steps)
        while True:
            facts = self._run(run, [self.subsets.spec(one) for one in wanted], extra_env)
            try:
                wanted = steps.send(facts)
            except StopIteration:
                break
        lines = list(report(search.found, self.set_name))
        self.stash[PAYLOAD].notes = [f"{self.spec.workload.name}: {lines[0]}", *lines[1:]]
        success, sentence = conclusion(search.found, self.set_name)
        if not success:
            raise TrialFailed(sentence)

    def _run(self, run: SessionRun, specs: list[TrialSpec], extra_env: Mapping[str, str]) -> list[TrialFacts]:
        started: list[tuple[RunningTrial, TrialPaths]] = []
        facts = []
        try:
            for spec in specs:
                paths = trial_paths(spec.workload.name, spec.cell, spec.trial_index)
                started.append((run.launch(self, spec, paths, extra_env), paths))
            for trial, paths in started:
                record = trial.finish()
                run.add_record(self, paths, record, trial.resumed)
                facts.append(facts_of(record.to_dict(), str(paths.file)))
                for text in (*trial.take_warnings(), *record.warnings):
                    self.warn(pytest.PytestWarning(text))
        except BaseException as error:
            why = reason_of(error)
            if isinstance(error, KeyboardInterrupt):
                run.interrupt(why)
            for trial, _ in started[len(facts) :]:
                trial.interrupt(why)
            for trial, paths in started[len(facts) :]:
                record = trial.finish()
                if trial.started:
                    run.add_record(self, paths, record, trial.resumed)
            raise
        payload = self.stash[PAYLOAD]
        wave = pytest.TestReport(self.nodeid, self.location, {}, "passed", None, "setup")
        wave.aorta = payload.to_plain(with_records=True)  # type: ignore[attr-defined]
        self.ihook.pytest_runtest_logreport(report=wave)
        payload.trials.clear()
        return facts

    def reportinfo(self) -> tuple[Path, int, str]:
        assert isinstance(self.parent, UnimportedModule)
        return *self.parent.location_of(self.spec), self.name


def name_of(spec: TrialSpec) -> str:
    names = "+".join(identifier(name) for name in spec.mitigations)
    return f"{identifier(spec.workload.name)}[{identifier(spec.environment.name)}-minimize-{names}]"


def wholes_of(plan: Plan, selection: Selection) -> list[TrialSpec]:
    return [spec for spec in plan.trials if spec.mitigations == selection.minimize and spec.trial_index == 0]


def minimize_items(plan: Plan, run: SessionRun, module_of: ModuleOf) -> Iterator[MinimizeItem]:
    """The items of a plan with two cells per workload and environment: baseline and whole set."""
    baselines = {
        (spec.workload.name, spec.environment.name): spec
        for spec in plan.trials
        if spec.mitigations != run.selection.minimize and spec.trial_index == 0
    }
    mitigations = [run.registry.mitigation(name) for name in run.selection.minimize]
    sibling: MinimizeItem | None = None
    name = ",".join(run.selection.minimize)
    for whole in wholes_of(plan, run.selection):
        baseline = baselines[whole.workload.name, whole.environment.name]
        subsets = Subsets(baseline, whole, mitigations)
        if missing := sorted(set(baseline.overlay) - set(whole.overlay)):
            raise PlanError(
                f"minimize {name}: the baseline {','.join(baseline.mitigations)} sets {missing[0]}, which it "
                "does not set; expected a baseline whose variables are all in the set, such as none"
            )
        if not subsets.variables:
            raise PlanError(f"minimize {name}: it has no variable with another value than in the baseline")
        sibling = MinimizeItem.of(module_of(whole), name_of(whole), use_fixtures, sibling)
        sibling.subsets, sibling.spec, sibling.set_name = subsets, whole, name
        yield sibling
