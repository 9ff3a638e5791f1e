"""Entry points of a zygote and its children: prepare a workload once, then run one trial per child."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from pathlib import Path
from typing import Any

from pytest_aorta.launch.child import workload_main
from pytest_aorta.launch.launch_mode import (
    COMMAND_RANKS_TARGET,
    SCRIPT,
    SCRIPT_TARGET,
    ChildArgument,
    WorkloadArgument,
    free_port,
    is_command,
    own_rank,
)
from pytest_aorta.runtime.channel import Channel
from pytest_aorta.trials.command_line import COMMAND_TARGET
from pytest_aorta.trials.execution import enter, take_place
from pytest_aorta.trials.records import Event
from pytest_aorta.trials.seeding import rank_seed
from pytest_aorta.trials.steps import step_file

#: Seconds between two looks at whether a rank that is waited for has ended; and what stands for the port then.
_LOOK, _NONE = 1.0, "none"


def prepare_trial(argument: WorkloadArgument) -> dict[str, Any]:
    """Describe what was loaded; import what an earlier trial has imported, and torch's agent if trials need it."""
    description = workload_main.prepare_workload(argument)
    forks = argument.get("forks_programs", False) and argument.get("import_seed") is None
    if argument["target"] == COMMAND_TARGET and forks and description["config_error"] is None:
        from pytest_aorta.launch.child import script

        script.prepare_script(argument["overrides"]["command"])
    if learned := argument.get("learned"):
        workload_main.import_learned(learned, argument.get("cores"))
    if description["launch_mode"] in ("distributed", SCRIPT):
        from pytest_aorta.launch.child import elastic  # noqa: F401  (once for all trials)
    return description


def run(payload: ChildArgument, channel: Channel) -> bool | None:
    """Run a trial; returns how its process has to exit, as ``ZygoteSpec.run`` says."""
    mode, send, folder = payload["mode"], channel.send, Path(payload["folder"])
    if "rank_environ" in payload:
        from pytest_aorta.launch.child import elastic

        elastic.run_zygote_rank(payload)
        return None
    lent = [channel.receive_fd() for _ in range(payload.get("rank_zygotes", 0))]
    if mode == "external":  # first of all, because another rank may make the folders of the trial
        # A rank may be far ahead of one whose last trial runs until its deadline. That wait does not count.
        send({"type": "ranks_start"})
        if not agree_on_master_port(payload["trial_id"], folder):
            os._exit(1)  # the ranks that have ended say why
        send({"type": "ranks_ready"})
    take_place(payload["place"])
    if payload["cwd"] is not None:
        enter(payload["cwd"])
    payload["base_pid"] = os.getpid() if mode in ("elastic", "torchrun") else payload["launcher_pid"]
    if payload["memory"] is not None:
        # This limit counts what is allocated, and not the address space that drivers reserve.
        resource.setrlimit(resource.RLIMIT_DATA, (payload["memory"], payload["memory"]))
    if mode in ("elastic", "torchrun"):
        from pytest_aorta.launch.child import elastic

        elastic.lent_zygotes = [Channel(fd) for fd in lent if fd is not None]
        targets = {SCRIPT_TARGET: elastic.run_script, COMMAND_RANKS_TARGET: elastic.run_command_ranks}
        run_ranks = elastic.run_elastic if mode == "elastic" else targets.get(payload["target"], elastic.run_torchrun)
        run_ranks(payload, send)
    elif mode == "external":
        from pytest_aorta.launch.child.rank_files import log_event

        rank, given = own_rank(), payload["rank_seed"]

        def send_and_log(event: Event) -> None:
            log_event(folder, rank, event)
            send(event)

        workload_main.use_seed(rank_seed(payload["seed"], rank) if given is None else given)
        workload_main.run_workload(payload, send_and_log, step_file(folder, rank))
    else:
        workload_main.use_seed(payload["seed"])
        workload_main.run_workload(payload, send, step_file(folder))
    return payload["ends_fully"] if mode == "single" and not is_command(payload["target"]) else None


def agree_on_master_port(trial_id: str, folder: Path) -> bool:
    """Wait for the other ranks, and set ``MASTER_PORT`` to the same fresh port in all of them.

    torchrun gives all trials of a pytest run one store. A second ``init_process_group()`` on it would read the
    addresses that the first one left there, so rank 0 announces a free port under the trial's name instead.
    Without torchrun's store (another launcher), the given ``MASTER_PORT`` is used again and again, which works as long
    as trials follow one another.

    Returns:
        Whether all ranks are there. ``False``: one of this host has ended before, such as in a slow import.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    from datetime import timedelta

    import torch.distributed as dist

    from pytest_aorta.launch.child.rank_files import has_ended, rank_folder

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    agents = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=300))  # type: ignore[attr-defined]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    shared = dist.PrefixStore(f"aorta/{attempt}/{trial_id}", agents)  # type: ignore[attr-defined]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    shared.set(f"here/{rank}", "1")
    if rank == 0:
        local = range(1, int(os.environ.get("LOCAL_WORLD_SIZE", size)))
        give_up, here = time.monotonic() + 300, False
        while not here and time.monotonic() < give_up:
            if any(has_ended(rank_folder(folder, other), other) for other in local):
                break
            with contextlib.suppress(dist.DistStoreError):
                shared.wait([f"here/{other}" for other in range(size)], timedelta(seconds=_LOOK))
                here = True
        shared.set("port", str(free_port()) if here else _NONE)
    agreed = shared.get("port").decode()
    os.environ["MASTER_PORT"] = agreed
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    return bool(agreed != _NONE)
