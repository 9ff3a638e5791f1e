"""What runs in a zygote and in its children: prepare once, then one trial per child, by its launch mode."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from pytest_aorta.launch import living
from pytest_aorta.launch.ranks import script
from pytest_aorta.launch.ranks.stories import teller
from pytest_aorta.launch.rules import own_rank
from pytest_aorta.runtime.processes.channel import Channel


def prepare(argument: dict[str, Any]) -> dict[str, Any]:
    """Prepare the workload, and import torch's agent where trials will need it. ``argument`` as of ``living``."""
    if argument["target"] == script.TARGET:
        return script.prepare_script(argument)
    description = living.prepare(argument)
    if description["launch_mode"] == "distributed":
        from pytest_aorta.launch.ranks import elastic  # noqa: F401  (once for all trials)
    return description


def run(payload: dict[str, Any], channel: Channel) -> None:
    """Live one trial.

    ``payload``: ``target``, ``overrides``, ``steps``, ``overlay`` (names), ``mode``, ``nproc``, ``trial_id``,
    ``folder``, ``grace``, ``memory``, ``elastic``, ``launcher_pid`` (of an outer launcher); ``base_pid``, the
    process with the variables that the launcher starts from, or ``None``, is added here.
    """
    mode, send = payload["mode"], channel.send
    payload["base_pid"] = os.getpid() if mode in ("elastic", "torchrun") else payload["launcher_pid"]
    if payload["memory"] is not None:
        # Of all limits, the one that counts what is allocated, and not the address space that drivers reserve.
        resource.setrlimit(resource.RLIMIT_DATA, (payload["memory"], payload["memory"]))
    if payload["target"] == script.TARGET:
        script.run_script(payload, send)
    elif mode == "elastic":
        from pytest_aorta.launch.ranks.elastic import run_elastic

        run_elastic(payload, send)
    elif mode == "torchrun":
        from pytest_aorta.launch.ranks.torchrun import run_torchrun

        run_torchrun(payload, send)
    elif mode == "external":
        from pytest_aorta.launch.ranks.external import meet

        meet(payload["trial_id"])
        living.live(payload, teller(Path(payload["folder"]), own_rank(), relay=send))
    else:
        living.live(payload, send)
