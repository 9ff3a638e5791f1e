"""What the host sends to the process of a trial: JSON values."""

from __future__ import annotations

from typing import Any

from typing_extensions import NotRequired, TypedDict

from pytest_aorta.launch.launch_mode import Mode


class WorkloadArgument(TypedDict):
    """The workload with its options."""

    target: str
    overrides: dict[str, Any]
    steps: int | None


class PrepareArgument(WorkloadArgument):
    """For ``launch.child.main.prepare``. ``launcher`` is there because cells that differ in it share no zygote."""

    launcher: str


class TrialPayload(WorkloadArgument):
    """For ``launch.child.main.run``.

    ``overlay`` holds names of variables; ``launcher_pid`` is the process of an outer launcher. In the trial's process
    are added: ``base_pid``, the process with the variables that the launcher of the ranks starts from, if there is one;
    ``sys_path``, for ranks in interpreters that torchrun starts.
    """

    overlay: list[str]
    mode: Mode
    nproc: int
    trial_id: str
    folder: str
    grace: float
    memory: int | None
    elastic: dict[str, Any]
    launcher_pid: int | None
    base_pid: NotRequired[int | None]
    sys_path: NotRequired[list[str]]
