"""Processes that a workload of a file starts can import that file, whatever starts the trial."""

from __future__ import annotations

import pytest
from support.stage import Stage

REPRO = """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    class Item:
        def __init__(self, value):
            self.value = value

    def double(item):
        return Item(2 * item.value)

    class Repro:
        def __init__(self, config):
            self.method = config["method"]

        default_config = {"method": "spawn"}

        def setup(self):
            pass

        def run(self):
            context = multiprocessing.get_context(self.method)
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                return {"passed": pool.submit(double, Item(21)).result().value == 42}
"""


@pytest.mark.parametrize(
    ("isolation", "method"),
    [("fork", "spawn"), ("none", "spawn"), pytest.param("fork", "forkserver", marks=pytest.mark.slow)],
)
def test_a_pool_of_a_file_workload(stage: Stage, isolation: str, method: str) -> None:
    stage.write(my_repro=REPRO)
    result = stage.run_here("my_repro.py", "--aorta-isolation", isolation, "--aorta-config", f"method={method}")
    result.assert_outcomes(passed=1)
