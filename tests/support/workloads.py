"""Stages with workloads that several test files use."""

from __future__ import annotations

import pytest

from support.stage import Stage

#: The third trial waits for ever in the phase that is named in the environment.
WAITS = """
import os
import subprocess
import time
from pathlib import Path

class Waits:
    def __init__(self, config): pass
    def phase(self, name):
        if name == "setup":
            self.index = len(list(Path.cwd().glob("seen_*")))
            Path(f"seen_{self.index}").touch()
        if self.index == 2 and name == os.environ["WAIT_IN"]:
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
            time.sleep(0.3)  # by then, pytest waits for it
            Path("waiting").touch()
            time.sleep(1000)
    def setup(self):
        self.phase("setup")
    def run(self):
        self.phase("run")
        return {"passed": True, "metrics": {"index": self.index}}
    def cleanup(self):
        self.phase("cleanup")
"""

#: Fails where its option says so, unless the variable ``FIXED`` is set.
SHAKY = """
import os

class Shaky:
    default_config = {"bad": 1}
    def __init__(self, config): self.bad = int(config["bad"])
    def setup(self): pass
    def run(self): return {"passed": not self.bad or "FIXED" in os.environ}
"""


def shaky_project(stage: Stage, monkeypatch: pytest.MonkeyPatch, recipe: str) -> None:
    """A recipe of trials of ``SHAKY`` in the current directory, with the mitigations ``fix`` and ``other``."""
    stage.write(work=SHAKY)
    stage.register(shaky="work:Shaky")
    stage.write_registry(mitigations={"fix": {"FIXED": "1"}, "other": {"OTHER": "1"}})
    stage.write_file("aorta.toml", recipe)
    monkeypatch.setenv("PYTEST_AORTA_REGISTRY_FILE", str(stage.path / "registry.json"))
    monkeypatch.chdir(stage.path)
    monkeypatch.syspath_prepend(stage.path)


#: What workloads of ranks have in common. Their classes follow it.
GLOO = """
import os
import time

import torch
import torch.distributed as dist


class Gloo:
    launch_mode = "distributed"
    min_world_size = 2

    def __init__(self, config):
        pass

    def setup(self):
        dist.init_process_group("gloo")

    def sum_of_ranks(self):
        total = torch.full((1,), dist.get_rank() + 1.0)
        dist.all_reduce(total)
        return float(total)

    def cleanup(self):
        dist.destroy_process_group()
"""

SIMPLE = """
class Simple:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        return {"passed": True, "step_times_ms": [1.5, 2.5, 9.0]}
"""

ECHO = """
class Echo:
    def __init__(self, config): self.config = config
    def setup(self): pass
    def run(self): return {"passed": True, "metrics": dict(self.config)}

class Other(Echo):
    pass
"""

OFFERED = """
import os

import pydantic

class Plain:
    def __init__(self, config): self.config = config
    def setup(self): pass
    def run(self): return {"passed": True, "metrics": {**self.config, "SEEN": os.environ.get("SEEN")}}

class Typed(Plain):
    class Config(pydantic.BaseModel):
        size: int = 1
        mode: str = "fast"

    def __init__(self, config): self.config = config.model_dump()
"""


@pytest.fixture
def waits(stage: Stage) -> Stage:
    stage.write(waits=WAITS)
    return stage


@pytest.fixture
def simple(stage: Stage) -> Stage:
    """With a registered workload ``simple`` and a test."""
    stage.write(
        simple=SIMPLE,
        test_other="""
        def test_other():
            pass
        """,
    )
    stage.register(simple="simple:Simple")
    return stage


@pytest.fixture
def echo(stage: Stage) -> Stage:
    stage.write(echo=ECHO)
    stage.register(echo="echo:Echo", other="echo:Other")
    return stage


@pytest.fixture
def offered(stage: Stage) -> Stage:
    stage.write(offered=OFFERED)
    stage.register(plain="offered:Plain", typed="offered:Typed")
    return stage
