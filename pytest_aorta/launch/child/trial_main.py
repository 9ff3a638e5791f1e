"""Entry points of a zygote and its children: prepare a workload once, then run one trial per child."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from pytest_aorta.launch.child import command_ranks, script, workload_main
from pytest_aorta.launch.child.agent_files import use_for_agent
from pytest_aorta.launch.child.event_log import EventLogWriter, event_log
from pytest_aorta.launch.launch_mode import COMMAND_RANKS_TARGET, SCRIPT_TARGET, own_rank
from pytest_aorta.launch.trial_payload import PrepareArgument, TrialPayload
from pytest_aorta.runtime.channel import Channel
from pytest_aorta.trials.place_variables import take_place
from pytest_aorta.trials.seeding import rank_seed
from pytest_aorta.trials.steps import step_file


def load(argument: PrepareArgument) -> None:
    """Import the workload; a script is imported by its ranks."""
    if argument["target"] not in (SCRIPT_TARGET, COMMAND_RANKS_TARGET):
        workload_main.load(argument, argument["seed"], argument["preload"])


def prepare(argument: PrepareArgument) -> dict[str, Any]:
    """Describe what was loaded, and import torch's agent where trials need it."""
    if argument["target"] == SCRIPT_TARGET:
        return script.prepare_script(argument)
    if argument["target"] == COMMAND_RANKS_TARGET:
        return command_ranks.prepare_command(argument)
    description = workload_main.prepare(argument)
    if description["launch_mode"] == "distributed":
        from pytest_aorta.launch.child import elastic  # noqa: F401  (once for all trials)
    return description


def orphaned() -> None:
    """Remove the temporary folders of runs that were killed."""
    import tempfile

    from pytest_aorta.runtime.resources.used_folders import SHORT, sweep

    sweep(Path(os.environ.get("TMPDIR") or tempfile.gettempdir()))
    sweep(SHORT)  # links to the folders that are gone now


def run(payload: TrialPayload, channel: Channel) -> None:
    """Run one trial."""
    mode, send = payload["mode"], channel.send
    if mode == "external":  # first of all, for the folders of the trial may be made by another rank
        from pytest_aorta.launch.child.external import agree_on_master_port

        agree_on_master_port(payload["trial_id"])
    take_place(payload["place"])
    if mode in ("elastic", "torchrun"):
        use_for_agent(payload["sockets"])
    payload["base_pid"] = os.getpid() if mode in ("elastic", "torchrun") else payload["launcher_pid"]
    if payload["memory"] is not None:
        # This limit counts what is allocated, and not the address space that drivers reserve.
        resource.setrlimit(resource.RLIMIT_DATA, (payload["memory"], payload["memory"]))
    if payload["target"] == SCRIPT_TARGET:
        script.run_script(payload, send)
    elif payload["target"] == COMMAND_RANKS_TARGET:
        command_ranks.run_command_ranks(payload, send)
    elif mode == "elastic":
        from pytest_aorta.launch.child.elastic import run_elastic

        run_elastic(payload, send)
    elif mode == "torchrun":
        from pytest_aorta.launch.child.torchrun import run_torchrun

        run_torchrun(payload, send)
    elif mode == "external":
        folder, rank = Path(payload["folder"]), own_rank()
        log = EventLogWriter(event_log(folder, rank), relay=send)
        given = payload["rank_seed"]
        workload_main.use_seed(rank_seed(payload["seed"], rank) if given is None else given)
        workload_main.run_workload(payload, log.send, step_file(folder, rank))
    else:
        workload_main.use_seed(payload["seed"])
        workload_main.run_workload(payload, send, step_file(Path(payload["folder"])))
