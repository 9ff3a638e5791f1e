"""What a trial's record says of its process at the end of run(), and the list of packages beside the records."""

from __future__ import annotations

import pytest
from support.stage import Stage

ENDS = """
    class Sets:
        def __init__(self, config): pass
        def setup(self): pass
        def run(self):
            import decimal
            import torch
            torch.use_deterministic_algorithms(True)
            torch.set_num_threads(1)
            return {"passed": True}

    class Raises(Sets):
        def run(self):
            super().run()
            raise ValueError("no")
"""


@pytest.mark.parametrize(("isolation", "name"), [("fork", "Raises"), ("none", "Sets")])
def test_the_state_of_torch_is_that_at_the_end_of_run(stage: Stage, isolation: str, name: str) -> None:
    stage.write(ends=ENDS)
    stage.run_here(f"ends.py::{name}", "--aorta-isolation", isolation)
    end = stage.trial(f"{name}/trial_0.json")["env"]["end"]
    assert end["torch"]["deterministic"]["algorithms"] is True
    assert end["torch"]["threads"]["intraop"] == 1
    assert not end["partial"]
    assert end["libraries"]["count"] > 10
