"""What the host sends to the process of a trial: JSON values."""

from __future__ import annotations

from typing import Any, TypedDict

from typing_extensions import NotRequired

from pytest_aorta.launch.launch_mode import Mode
from pytest_aorta.trials.aorta import EnvironmentData


class WorkloadArgument(TypedDict):
    """A workload and its options."""

    target: str
    overrides: dict[str, Any]
    steps: int | None


class PrepareArgument(WorkloadArgument):
    """For ``launch.child.trial_main.prepare``. Cells that differ in ``launcher`` share no zygote.

    ``seed`` is that of the trial, where each trial imports the workload in a process of its own.
    """

    launcher: str
    seed: int | None


class TrialPayload(WorkloadArgument):
    """For ``launch.child.trial_main.run``.

    ``overlay`` holds names of variables, and ``place`` variables. ``sockets`` is the folder in which ranks make sockets
    for the host. ``launcher_pid`` is the process of an outer launcher. ``base_pid`` is added in the trial's process:
    the process with the variables that the launcher of the ranks starts from, if there is one.
    """

    overlay: list[str]
    environment: EnvironmentData
    collect: list[str]
    place: dict[str, str]
    sockets: str
    mode: Mode
    nproc: int
    trial_id: str
    folder: str
    grace: float
    memory: int | None
    elastic: dict[str, Any]
    seed: int
    launcher_pid: int | None
    base_pid: NotRequired[int | None]
