"""A script for torchrun as a workload class: ``--aorta-config script=train.py``."""

from __future__ import annotations

import runpy
import sys
from typing import Any

import torch.distributed as dist


class Script:
    """Each rank runs the script as its main program."""

    launch_mode = "distributed"

    def __init__(self, config: dict[str, Any]) -> None:
        self.path = str(config["script"])

    def setup(self) -> None:
        pass

    def run(self) -> dict[str, Any]:
        sys.argv = [self.path]
        try:
            runpy.run_path(self.path, run_name="__main__")
        except SystemExit as ends:
            if ends.code not in (None, 0):
                raise
        return {"passed": True}

    def cleanup(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
