"""Runs of pytest within a test, as the fixture ``pytester`` starts them: each imports modules anew."""

from __future__ import annotations

from support.stage import Stage


def test_each_nested_run_reports_its_trials_alike(stage: Stage) -> None:
    stage.write(
        test_nested='''
        pytest_plugins = "pytester"

        SOURCE = """
        class Exits:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self): raise SystemExit(3)
        """

        def test_twice(pytester):
            pytester.makepyfile(exits=SOURCE)
            for _ in range(2):
                result = pytester.runpytest_inprocess("exits.py", "-p", "no:cacheprovider")
                result.stdout.fnmatch_lines(["FAILED exits.py::Exits* - SystemExit: sys.exit(3) (workload_fail*"])
        '''
    )
    # Without a variable that asks for trials in the outer run: its modules would be those of both.
    stage.run("test_nested.py", env={"PYTEST_AORTA_GRACE": ""}).assert_outcomes(passed=1)
