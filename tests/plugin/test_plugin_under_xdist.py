"""Under pytest-xdist: the same files as without it, written by the controller."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from support.stage import Stage


def test_worker_that_dies_loses_its_trial_and_no_other(faulty: Stage) -> None:
    faulty.write(
        conftest="""
        import os
        import pytest

        @pytest.fixture(autouse=True)
        def kill(request):
            if request.node.name == "passes[local-none-2]":
                os.kill(os.getpid(), 9)
        """
    )
    result = faulty.run("--aorta-workload", "passes", "--aorta-trials", "5", "-n", "2", "--junitxml", "out.xml")
    # The workload is not what failed.
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of passes?local-none-2?*", "*the xdist worker that ran this*"])
    properties = {
        each.attrib["name"]: each.attrib["value"]
        for case in ElementTree.parse(faulty.path / "out.xml").iter("testcase")
        if case.attrib["name"] == "passes[local-none-2]"
        for each in case.iter("property")
    }
    assert properties["aorta_exit_status"] == "infrastructure_failed"
    assert properties["aorta_trial_file"] == str(faulty.results / "passes/trial_2.json")
    assert list(faulty.statuses().values()) == ["ok", "ok", "infrastructure_failed", "ok", "ok"]
    trial = faulty.trial("passes/trial_2.json")
    assert trial["failure"]["message"] == "the xdist worker that ran this trial died"
    assert trial["trial_id"] == "passes_d0_m0_t2"
    faulty.wait_until(lambda: not faulty.left_running())


def test_wrong_options_are_refused_once_and_before_the_first_trial(offered: Stage) -> None:
    for trials in (("--aorta-workload", "typed"), ("offered.py::Typed",)):
        result = offered.run(*trials, "-n", "2", "--aorta-config", "siez=3")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert result.errlines == ["ERROR: Typed has no option 'siez'; valid: mode, size", ""]
        assert offered.files() == []
