"""``pytest-aorta amplify``, ``bisect``, ``explain``, ``minimize``: one item per search, which runs what it wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.common.texts import INLINE_PREFIX, environment_label, identifier, utc_now
from pytest_aorta.plan import SEARCHES, Plan, PlanError, Selection, check_variables, overlay
from pytest_aorta.plugin.compat import GeneratedFunction
from pytest_aorta.plugin.failures import TrialFailed
from pytest_aorta.plugin.ordinary_tests import in_a_process
from pytest_aorta.plugin.run import PAYLOAD, ReportPayload, SessionRun, reason_of, run_of
from pytest_aorta.plugin.trial_item import ModuleOf, UnimportedModule, use_fixtures
from pytest_aorta.registry import Mitigation, inline_environment
from pytest_aorta.search import Search, Wanted
from pytest_aorta.search.amplify import Amplify
from pytest_aorta.search.bisect import Bisect
from pytest_aorta.search.explain import Explain, combined, part_name
from pytest_aorta.search.minimize import Minimize
from pytest_aorta.triage.facts import TrialFacts, facts_of
from pytest_aorta.triage.searches import SearchReport
from pytest_aorta.workspace.atomic import write_json, write_text
from pytest_aorta.workspace.paths import TrialPaths, trial_paths

if TYPE_CHECKING:
    from pytest_aorta.launch.job import TrialJob
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
        variables = wanted.arm
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


class SearchItem(GeneratedFunction):
    """One search. ``spec``: a trial of it; ``spec_of``: the trial that the search wants."""

    search: Search
    spec: TrialSpec
    spec_of: Callable[[Wanted], TrialSpec]

    def runtest(self) -> None:
        """Run the trials of the search; report each wave when it ends, since the search may take hours."""
        __tracebackhide__ = True
        run = run_of(self.config)
        self.stash[PAYLOAD] = ReportPayload()
        extra_env: Any = self.funcargs["aorta_extra_env"]
        try:
            check_variables("the fixture aorta_extra_env", extra_env)
        except PlanError as error:
            raise TrialFailed(str(error)) from None
        steps = self.search.steps()
        facts: list[TrialFacts] | None = None
        while True:
            try:
                wanted = next(steps) if facts is None else steps.send(facts)
            except StopIteration:
                break
            try:
                facts = self._run(run, [self.spec_of(one) for one in wanted], extra_env)
            except KeyboardInterrupt:
                if facts is not None:
                    self._conclude(run, self.search.report().so_far())
                    self._tell()
                raise
        report = self._conclude(run, self.search.report())
        if not report.is_found:
            raise TrialFailed(report.sentence)

    def _conclude(self, run: SessionRun, report: SearchReport) -> SearchReport:
        """Write what the search says, as JSON and Markdown, and have it printed."""
        name, what = self.spec.workload.name, type(self.search).__name__.lower()
        file = run.results / f"{what}-{identifier(name)}.json"
        said = {"search": what, "workload": name, "report": asdict(replace(report, at=utc_now()))}
        write_json(file, {**self.search.result.to_json(), **said})
        write_text(file.with_suffix(".md"), report.markdown(f"{what} {name}"))
        lines = report.lines()
        self.stash[PAYLOAD].notes = [f"{name}: {lines[0]}", *lines[1:]]
        return report

    def _tell(self) -> None:
        """Report what has come together, before the item has ended."""
        payload = self.stash[PAYLOAD]
        wave = pytest.TestReport(self.nodeid, self.location, {}, "passed", None, "setup")
        wave.aorta = payload.to_plain(with_records=True)  # type: ignore[attr-defined]
        self.ihook.pytest_runtest_logreport(report=wave)
        payload.trials.clear()
        payload.notes.clear()

    def _run(self, run: SessionRun, specs: list[TrialSpec], extra_env: Mapping[str, str]) -> list[TrialFacts]:
        started: list[tuple[TrialJob, TrialPaths]] = []
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
        self._tell()
        return facts

    def reportinfo(self) -> tuple[Path, int, str]:
        assert isinstance(self.parent, UnimportedModule)
        return *self.parent.location_of(self.spec), self.name


def search_name(spec: TrialSpec, selection: Selection) -> str:
    """Of the item: ``gemm[local-minimize-A+B]``; a bisection has all environments, and the first one's name."""
    what = next(name for name in SEARCHES if getattr(selection, name))
    names = "+".join(identifier(name) for name in spec.mitigations)
    return f"{identifier(spec.workload.name)}[{identifier(spec.environment.name)}-{what}-{names}]"


def searches_of(plan: Plan, selection: Selection) -> list[TrialSpec]:
    """A trial for each search: of bisect and amplify the first of a workload, of minimize one of each whole set."""
    if selection.has_own_table:
        return [next(iter(cells.values())) for cells in plan.cells.values()]
    return [spec for spec in plan.trials if spec.mitigations == selection.minimize and spec.trial_index == 0]


def search_items(plan: Plan, run: SessionRun, module_of: ModuleOf) -> Iterator[SearchItem]:
    """The items of a plan whose cells are the positions of a bisection, or baseline and whole set."""
    sibling: SearchItem | None = None
    for spec in searches_of(plan, run.selection):
        makers = {"bisect": _bisection, "amplify": _amplification, "explain": _explanation, "minimize": _minimization}
        make = next(make for name, make in makers.items() if getattr(run.selection, name))
        search, spec_of = make(plan, run, spec)
        name = search_name(spec, run.selection)
        sibling = SearchItem.of(module_of(spec), name, use_fixtures, sibling)
        sibling.search, sibling.spec, sibling.spec_of = search, spec, spec_of
        yield sibling


def _bisection(plan: Plan, run: SessionRun, first: TrialSpec) -> tuple[Search, Callable[[Wanted], TrialSpec]]:
    selection = run.selection
    request = selection.bisect
    assert request is not None
    cells = list(plan.cells[first.workload.name].values())
    cells.sort(key=lambda spec: (spec.environment_index, spec.mitigation_index))
    if len(cells) < 2:
        raise PlanError(f"bisect: expected at least two positions, not {len(cells)}")
    are_several = len({each.environment for each in cells}) > 1
    named = [environment_label(spec.environment.name).removeprefix("commit-") * are_several for spec in cells]
    names = [
        " ".join(filter(None, (environment, *(name for name in spec.mitigations if name != "none"), title)))
        for spec, environment, title in zip(cells, named, request.titles or [""] * len(cells), strict=True)
    ]
    search = Bisect(
        names,
        selection.max_trials,
        selection.resources.total_slots,
        confidence=request.confidence,
        weights=request.weights or None,
        signature=request.signature,
        speed=request.speed,
    )
    return search, _trial_of_cell(cells)


def _amplification(plan: Plan, run: SessionRun, first: TrialSpec) -> tuple[Search, Callable[[Wanted], TrialSpec]]:
    request = run.selection.amplify
    assert request is not None
    cells = sorted(plan.cells[first.workload.name].values(), key=lambda spec: spec.mitigation_index)
    most, slots = run.selection.max_trials, run.selection.resources.total_slots
    sets = [",".join(spec.mitigations) for spec in cells]
    return Amplify(request.names, most, slots, signature=request.signature, sets=sets), _trial_of_cell(cells)


def _explanation(plan: Plan, run: SessionRun, first: TrialSpec) -> tuple[Search, Callable[[Wanted], TrialSpec]]:
    request = run.selection.explain
    assert request is not None
    if len(plan.cells[first.workload.name]) > 1:
        raise PlanError("explain: expected one environment and one mitigation set, under which all its trials run")
    changes = request.changes
    has_packages = any(each.good.package or each.bad.package for each in changes)
    if has_packages and first.environment.kind != "local":
        raise PlanError(f"explain: packages differ, and cannot be changed in the environment {first.environment.name}")
    everything = tuple(each.name for each in changes)
    numbers: dict[tuple[str, ...], int] = {}
    one = replace(first, execution=in_a_process(first.execution))
    others = tuple(name for name in one.mitigations if name != "none")

    def spec_of(wanted: Wanted) -> TrialSpec:
        chosen: tuple[str, ...] = wanted.arm
        number = numbers.setdefault(chosen, len(numbers))
        variables, words, packages, options = combined(changes, {*chosen})
        environment = one.environment
        if packages:
            environment = inline_environment(f"{INLINE_PREFIX}+{' '.join(packages)}")
        name = "good" if not chosen else "bad" if chosen == everything else f"part {number}: {part_name(chosen)}"
        return replace(
            one,
            trial_index=wanted.index,
            environment=replace(environment, launcher=(*words, *one.environment.launcher)),
            mitigation_index=number,
            mitigations=(*others, name),
            overlay={**one.overlay, **variables},
            overrides={**one.overrides, **options},
        )

    most, slots = run.selection.max_trials, run.selection.resources.total_slots
    return Explain(request, run.selection.trials, most, slots), spec_of


def _trial_of_cell(cells: Sequence[TrialSpec]) -> Callable[[Wanted], TrialSpec]:
    specs = [replace(spec, execution=in_a_process(spec.execution)) for spec in cells]
    return lambda wanted: replace(specs[wanted.arm], trial_index=wanted.index)


def _minimization(plan: Plan, run: SessionRun, whole: TrialSpec) -> tuple[Search, Callable[[Wanted], TrialSpec]]:
    selection = run.selection
    baseline = next(
        spec
        for spec in plan.trials
        if (spec.workload.name, spec.environment.name) == (whole.workload.name, whole.environment.name)
        and spec.mitigations != selection.minimize
    )
    name = ",".join(selection.minimize)
    subsets = Subsets(baseline, whole, [run.registry.mitigation(each) for each in selection.minimize])
    if missing := sorted(set(baseline.overlay) - set(whole.overlay)):
        raise PlanError(
            f"minimize {name}: the baseline {','.join(baseline.mitigations)} sets {missing[0]}, which it "
            "does not set; expected a baseline whose variables are all in the set, such as none"
        )
    if not subsets.variables:
        raise PlanError(f"minimize {name}: it has no variable with another value than in the baseline")
    slots = selection.resources.total_slots
    return Minimize(subsets.variables, selection.trials, selection.max_trials, slots, name=name), subsets.spec
