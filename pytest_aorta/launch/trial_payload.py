"""What the host sends to the process of a trial: JSON values."""

from __future__ import annotations

from typing import Any, TypedDict

from typing_extensions import NotRequired

from pytest_aorta.launch.launch_mode import Mode
from pytest_aorta.trials.config import EnvironmentData


class WorkloadArgument(TypedDict):
    """A workload and its options."""

    target: str
    overrides: dict[str, Any]
    steps: int | None


class PrepareArgument(WorkloadArgument):
    """For ``launch.child.trial_main.prepare``. Cells that differ in ``launcher`` share no zygote.

    ``seed`` is that of the trial, where each trial imports the workload in a process of its own. ``preload`` names
    modules to import before the workload. ``watches``: whether trials that are forked watch variables.
    """

    launcher: str
    seed: int | None
    preload: list[str]
    watches: bool


class Extension(TypedDict):
    """For ``launch.child.workload_main.extend``: modules to import, in order, on the ``cores`` of a slot."""

    modules: list[str]
    cores: list[int] | None


class Refused(TypedDict, total=False):
    """The first module of an ``Extension`` that must not be imported in advance, and why. Empty if all can be."""

    module: str
    why: str


class TrialPayload(WorkloadArgument):
    """For ``launch.child.trial_main.run``.

    ``overlay`` and ``watched`` hold names of variables, those set for this trial and those to record. ``place`` holds
    variables; in the folder ``sockets``, ranks make sockets for the host, and their agent has its temporary files.
    ``rank_seed`` takes the place of a seed that derives from ``seed``; ``launcher_pid`` is the process of an outer
    launcher. ``base_pid`` is added in the trial's process: the process with the variables that the launcher of the
    ranks starts from, if there is one.
    ``watch_imports``: report what the workload imports that its zygote could have imported before.
    ``timeout`` and ``stall_timeout``, in seconds, are those that the host will end it by; ``source`` is the workload's
    file.
    """

    overlay: list[str]
    watched: list[str]
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
    rank_seed: int | None
    launcher_pid: int | None
    watch_imports: bool
    timeout: float | None
    stall_timeout: float | None
    source: str | None
    base_pid: NotRequired[int | None]
