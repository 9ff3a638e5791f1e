"""Preparing a workload, and living one trial of it, in the process that was made for that."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_aorta.launch.child.launcher_variables import launcher_variables
from pytest_aorta.probe.collect import collect_env, collect_static
from pytest_aorta.probe.static import StaticEnv
from pytest_aorta.trials.config import resolve_config
from pytest_aorta.trials.events import Send
from pytest_aorta.trials.lifecycle import Lifecycle
from pytest_aorta.trials.loading import describe, load_class

_static: StaticEnv | None = None


def prepare(argument: dict[str, Any]) -> dict[str, Any]:
    """Import the workload and describe it; take the snapshot of what will not change.

    ``argument``: ``target``, ``overrides``, ``steps``.
    """
    global _static
    description = describe(load_class(argument["target"]), argument["overrides"], argument["steps"])
    source = description["source"]
    _static = collect_static(Path(source) if source else None)
    return description


def rehearse(argument: dict[str, Any]) -> None:
    """Do what every trial does before its workload's own code runs, for nothing. ``argument`` as in ``prepare``."""
    json.dumps(collect_env(_static).to_dict())
    load_class(argument["target"])


def live(payload: dict[str, Any], send: Send, on_error: Callable[[BaseException], object] = lambda error: None) -> bool:
    """One process's whole life: environment snapshot, then the phases. Whether setup and run succeeded.

    ``on_error`` takes what one of these has raised, before the cleanup.
    """
    env = collect_env(_static, payload["overlay"]).to_dict()
    send({"type": "env", "env": env, "launcher_variables": launcher_variables(payload["base_pid"])})
    cls = load_class(payload["target"])
    config = resolve_config(cls, payload["overrides"], payload["steps"])
    fine = Lifecycle(cls, config.value, send).run_all(on_error)
    send({"type": "lived", "at": time.time()})
    with contextlib.suppress(OSError, ValueError):  # closed by the workload, or the disk is full
        sys.stdout.flush()
    return fine
