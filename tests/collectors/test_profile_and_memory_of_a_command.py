from __future__ import annotations

import gzip
import json

import pytest
from support.stage import Stage, counts, text

TRAIN = """
import os
import torch

size = 4_000_000 if os.environ.get("PLANTED") else 400_000
model, values, kept = torch.nn.Linear(64, 64), torch.ones(size), []
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(24):
    (model(torch.ones(16, 64)).sum() + values.cumsum(0)[0]).backward()
    optimizer.step()
    optimizer.zero_grad()
    if os.environ.get("PLANTED"):
        kept.append(torch.ones(2**18))
"""


@pytest.mark.slow
def test_a_slower_operator_and_a_leak_of_one_cell_are_named_and_the_other_cell_is_clean(stage: Stage) -> None:
    stage.write(train=TRAIN)
    result = stage.run(
        "--aorta-command=python train.py", "--aorta-trials=4", "--aorta-mitigations=none",
        "--aorta-mitigations=PLANTED=1", "--aorta-collect=profile,memory",
    )  # fmt: skip
    assert counts(result) == {"passed": 8}, text(result)
    for path, record in stage.trials().items():
        profile, memory = (record["collected"][name] for name in ("profile", "memory"))
        assert (profile["problems"], memory["problems"]) == ([], [])
        assert bool(memory["sentence"]) == ("PLANTED" in path)
        growth = memory["data"]["rank_0"]["held"]["growth"]
        assert growth["low"] <= (2**20 if "PLANTED" in path else 0) <= growth["high"]
        trace = (stage.results / path).with_suffix("") / "collect" / "profile" / "rank_0.trace.json.gz"
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        assert sum(each.get("name") == "aten::cumsum" for each in events) == 5
    planted = json.loads((stage.results / "matrix.json").read_text())["cells"][1]
    assert planted["operators"][0]["name"] == "aten::cumsum"
    assert planted["operators"][0]["interval"]["low"] > 2
    assert "aten::cumsum +" in text(result)
