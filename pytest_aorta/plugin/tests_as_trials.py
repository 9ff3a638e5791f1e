"""Existing tests as trials: each selected test in every cell, each time in a pytest of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.plan import Plan, planned
from pytest_aorta.plugin import is_of_recipe
from pytest_aorta.plugin.compat import GeneratedFunction, option_actions
from pytest_aorta.plugin.one_test import NOT_INSIDE
from pytest_aorta.plugin.options import read_option
from pytest_aorta.plugin.ordinary_tests import marked_selection
from pytest_aorta.plugin.run import TEST_TARGET, current_run, run_of, warn
from pytest_aorta.plugin.trial_item import TrialItem, item_of
from pytest_aorta.registry import WorkloadEntry
from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from pytest_aorta.plugin.run import Run

#: Fixtures of a test that starts its trials itself.
_OWN_FIXTURES = frozenset({"aorta_run", "aorta_trial", "aorta_torchrun"})

#: Markers that count in the process of a trial, and not for its item.
_INSIDE = frozenset({"skip", "skipif", "xfail", "flaky", "timeout", "usefixtures", "repeat"})

#: Options that change how pytest prints, and those whose values are given apart.
_NOT_HANDED_ON = frozenset(
    {
        *NOT_INSIDE,
        *("verbose", "quiet", "reportchars", "showlocals", "tbstyle", "color", "code_highlight", "fulltrace"),
        *("durations_min", "no_header", "no_summary", "force_short_summary", "disable_warnings", "rootdir"),
        *("inifilename", "cov_source", "cov_report", "no_cov", "reruns", "reruns_delay"),
    }
)


def with_trials(collector: pytest.Collector, report: pytest.CollectReport) -> pytest.CollectReport:
    """What a collector has found, with trials in the place of tests that are to have some."""
    known = current_run(collector.config)
    takes_tests = known is not None and known.takes_tests
    if not takes_tests and not any("aorta" in node.keywords for node in report.result):
        return report  # and no run is made, which a test that starts trials may not be allowed
    run = run_of(collector.config)
    try:
        report.result = [each for node in report.result for each in _in_place_of(node, run)]
    except RequestError as error:
        return pytest.CollectReport(collector.nodeid, "failed", f"{collector.nodeid}: {error}", [])
    return report


def _in_place_of(node: pytest.Item | pytest.Collector, run: Run) -> Sequence[pytest.Item | pytest.Collector]:
    if not isinstance(node, pytest.Item) or isinstance(node, TrialItem) or is_of_recipe(node.nodeid):
        return [node]
    if not _OWN_FIXTURES.isdisjoint(getattr(node, "fixturenames", ())):
        return [node]
    selection, asks = marked_selection(node, run)
    if not asks and not run.takes_tests:
        return [node]
    why = _only_here(node)
    if why:
        warn(node, [f"{node.nodeid} runs once, and not as trials: {why}"])
        return [node]
    options = [name for names in selection.mitigations for name in names if run.registry.mitigation(name).options]
    if options:
        raise RequestError(f"{options[0]}: a test has no options; config.NAME is for workloads")
    if not _is_given(node.config, "isolation"):
        selection = replace(selection, execution=replace(selection.execution, isolation="spawn"))
    plan = planned([_entry_of(node)], selection, run.registry)
    return list(_items(node, plan, run))


def _is_given(config: pytest.Config, name: str) -> bool:
    return read_option(config, name) is not None


def _only_here(item: pytest.Item) -> str:
    option = item.config.option
    if option.usepdb or option.trace:
        return "a debugger (--pdb, --trace) is of no use in the process of a trial"
    if getattr(option, "aorta_isolation", None) == "none":
        return "--aorta-isolation none leaves a trial no process of its own"
    if item.get_closest_marker("xdist_group") is not None:
        return "its xdist_group has tests that run in one process"
    return ""


def _entry_of(item: pytest.Item) -> WorkloadEntry:
    config = item.config
    names = item.nodeid.partition("::")[2]
    return WorkloadEntry(
        name=item.nodeid,
        target=TEST_TARGET,
        source_package="pytest",
        options={
            "test": f"{item.path}::{names}" if names else str(item.path),
            "nodeid": item.nodeid,
            "rootdir": str(config.rootpath),
            "inifile": None if config.inipath is None else str(config.inipath),
            "arguments": _arguments(config),
        },
    )


def _arguments(config: pytest.Config) -> list[str]:
    """What the command line says of how tests are found and run; not which, and nothing of trials."""
    actions = option_actions(config)
    given = iter(getattr(config, "workerinput", {}).get("aorta_arguments", map(str, config.invocation_params.args)))
    kept = []
    for text in given:
        flags = [text.partition("=")[0]] if text.startswith("--") else [f"-{char}" for char in text[1:]]
        for place, flag in enumerate(flags if text.startswith("-") else ()):
            action = actions.get(flag)
            if action is None:
                break
            words = [flag]
            has_value = action.nargs != 0
            if has_value:
                rest = text[len(flag) + 1 :] if text.startswith("--") else text[place + 2 :]
                inside = "=" in text if text.startswith("--") else bool(rest)
                words.append(rest if inside else next(given, ""))
            is_ours = action.dest.startswith("aorta_") or words[-1].startswith("aorta_")
            if action.dest not in _NOT_HANDED_ON and not is_ours:
                kept += words
            if has_value:
                break
    return [*kept, *(["--no-cov"] if "--no-cov" in actions else [])]


def _items(test: pytest.Item, plan: Plan, run: Run) -> Iterator[TestTrialItem]:
    name, bracket, parameters = test.name.partition("[")
    others = f"{parameters.removesuffix(']')}-" if bracket else ""
    assert isinstance(test.parent, pytest.Collector)
    item: TestTrialItem | None = None
    for spec in plan.trials:
        label = f"{name}[{others}{spec.cell}-{spec.trial_index}]"
        item = item_of(TestTrialItem, test.parent, label, run, spec, plan.paths, item)
        item.test = test
        item.own_markers += [mark for mark in test.own_markers if mark.name not in _INSIDE]
        item.keywords.update((mark.name, mark) for mark in item.own_markers)
        run.tests.append(spec)
        yield item


class TestTrialItem(TrialItem):
    """A trial that is one run of a test."""

    __test__ = False
    #: In whose place it stands.
    test: pytest.Item

    @classmethod
    def of(
        cls, parent: pytest.Collector, name: str, function: Callable[..., None], sibling: GeneratedFunction | None
    ) -> Any:
        """Its fixtures are set up inside, and those that all tests use are not outside as well."""
        if sibling is None:
            return cls.with_fixture(parent, name, function, "aorta_extra_env")
        return super().of(parent, name, function, sibling)

    def iter_markers_with_node(self, name: str | None = None) -> Iterator[tuple[Any, pytest.Mark]]:
        """Without those that count inside."""
        return ((node, mark) for node, mark in super().iter_markers_with_node(name) if mark.name not in _INSIDE)

    def reportinfo(self) -> tuple[Path, int, str]:
        """As of the test."""
        path, line, _ = self.test.reportinfo()
        return Path(path), line or 0, self.nodeid.partition("::")[2].replace("::", ".")
