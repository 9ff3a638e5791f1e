"""No process is forked while one of its threads may hold a lock: such a cell gets fresh interpreters."""

from __future__ import annotations

import pytest
from support.stage import Stage


@pytest.mark.parametrize(
    "arguments", [(), ("-n", "2"), ("--aorta-workload", "threaded")], ids=["file", "xdist", "name"]
)
def test_module_that_starts_a_thread_falls_back_to_fresh_interpreters(stage: Stage, arguments: tuple[str, ...]) -> None:
    stage.write(
        threaded="""
        import os
        import threading
        import time

        threading.Thread(target=time.sleep, args=(1000,), daemon=True, name="prefetcher").start()
        PID = os.getpid()

        class Threaded:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self): return {"passed": PID == os.getpid(), "metrics": {"pid": PID}}
        """
    )
    stage.register(threaded="threaded:Threaded")
    result = stage.run(*(arguments if "threaded" in arguments else (*arguments, "threaded.py")), "--aorta-trials", "3")
    result.assert_outcomes(passed=3, warnings=2 if "-n" in arguments else 1)
    result.stdout.fnmatch_lines(["*PytestWarning: importing *threaded.py started Python threads: prefetcher; *"])
    assert len({trial["result"]["metrics"]["pid"] for trial in stage.trials().values()}) == 3
    assert stage.left_running() == []
