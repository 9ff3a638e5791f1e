"""No trial can take down pytest, another trial, or the results of either."""

from __future__ import annotations

from support.stage import Stage


def test_one_bad_trial_does_not_touch_its_neighbours(stage: Stage) -> None:
    stage.write(
        flaky="""
        import os
        from pathlib import Path

        class Flaky:
            timeout_sec = 20

            def __init__(self, config): pass
            def setup(self):
                self.index = len(list(Path.cwd().glob("seen_*")))
                Path(f"seen_{self.index}").touch()
            def run(self):
                if self.index == 1:
                    os.kill(os.getpid(), 9)
                if self.index == 3:
                    raise ValueError(self.index)
                return {"passed": True, "metrics": {"index": self.index}}
        """
    )
    result = stage.run_here("flaky.py", "--aorta-trials", "6")
    result.assert_outcomes(passed=4, failed=2)
    assert list(stage.statuses().values()) == ["ok", "workload_failed", "ok", "workload_failed", "ok", "ok"]
    assert stage.trial("Flaky/trial_5.json")["result"]["metrics"] == {"index": 5}
    assert stage.trial("Flaky/trial_1.json")["failure"]["signal"] == "SIGKILL"
