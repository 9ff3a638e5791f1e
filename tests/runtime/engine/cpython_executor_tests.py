"""CPython's own tests of executors, with ours in the place of its own. Run as a script, with ``test`` on the path."""

from __future__ import annotations

import sys
import unittest
from typing import Any

import test.test_concurrent_futures as theirs  # type: ignore[import-not-found]  # is not in every installation

from pytest_aorta.runtime import Executor

#: Tests of CPython that do not apply, and why.
DO_NOT_APPLY = {
    "test_interpreter_shutdown": "its script imports the class by name from concurrent.futures; ours is tested alike",
    "test_submit_after_interpreter_shutdown": "its script imports the class by name from concurrent.futures",
    "test_hang_gh83386": "its script imports the class by name from concurrent.futures",
    "test_hang_gh94440": "its script imports the class by name from concurrent.futures",
    "test_killed_child": "a killed process breaks the pool there, and costs one call here",
    "test_traceback": "asks for the private class _RemoteTraceback; ours is tested alike",
    "test_max_workers_too_large": "a limit of Windows",
    "test_ressources_gced_in_workers": "patches multiprocessing's context",
    "test_saturation": "looks at the private queue of ProcessPoolExecutor",
    "test_idle_process_reuse_one": "looks at the private processes of ProcessPoolExecutor, which start one by one",
    "test_idle_process_reuse_multiple": "looks at the private processes of ProcessPoolExecutor, which start one by one",
    "test_max_tasks_early_shutdown": "max_tasks_per_child: a slot lives until something ends it",
}


class Ours(theirs.ExecutorMixin):  # type: ignore[misc]
    executor_type = Executor


class Unprimed(Ours):
    def _prime_executor(self) -> None:
        pass


def applying(*bases: Any) -> Any:
    """A class of their tests, without those that do not apply."""
    kept: dict[str, Any] = {}
    for base in bases:
        for name in dir(base):
            if name in DO_NOT_APPLY:
                kept[name] = unittest.skip(DO_NOT_APPLY[name])(lambda self: None)
    return type("Tests", (*bases, theirs.BaseTestCase), kept)


class TestExecutor(applying(Ours, theirs.ExecutorTest)):  # type: ignore[misc]
    pass


class TestOfProcesses(applying(Ours, theirs.ProcessPoolExecutorTest)):  # type: ignore[misc]
    pass


class TestWait(applying(Ours, theirs.WaitTests)):  # type: ignore[misc]
    pass


class TestAsCompleted(applying(Ours, theirs.AsCompletedTests)):  # type: ignore[misc]
    pass


class TestShutdown(applying(Unprimed, theirs.ExecutorShutdownTest)):  # type: ignore[misc]
    pass


class TestInitializer(theirs.InitializerMixin, theirs.BaseTestCase):  # type: ignore[misc]
    executor_type = Executor


if __name__ == "__main__":
    sys.modules["cpython_executor_tests"] = sys.modules["__main__"]
    unittest.main(verbosity=2)
