"""The interface of a workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

LaunchMode = Literal["single_process", "distributed"]
ResultScope = Literal["global", "rank_local"]


@dataclass
class WorkloadResult:
    """What one run of a workload found.

    Any object with these attributes is accepted as well; only ``passed`` is required.

    Attributes:
        passed: whether the run met the workload's own criterion, a bool; decides whether the trial is ok.
        failure_count: number of failures, as the workload defines them.
        first_failure_iteration: index of the first failing iteration, ``None`` without one.
        failure_details: one mapping per failure; free keys.
        total_iterations: iterations that the workload counts as done.
        step_times_ms: duration of every step, in milliseconds; without it, those between calls of ``progress``.
        elapsed_sec: duration of the main work, in seconds; 0 when not measured.
        metrics: any further values; numbers are best.
        main_work_started: ``False`` when the run ended before its main work; ``None`` when not tracked.
        executed_iterations: iterations executed; ``None`` when not tracked.
        configured_iterations: iterations asked for; ``None`` when not tracked.
    """

    passed: bool
    failure_count: int = 0
    first_failure_iteration: int | None = None
    failure_details: list[dict[str, Any]] = field(default_factory=list)
    total_iterations: int = 0
    step_times_ms: list[float] = field(default_factory=list)
    elapsed_sec: float = 0.0
    metrics: dict[str, Any] = field(default_factory=dict)
    main_work_started: bool | None = None
    executed_iterations: int | None = None
    configured_iterations: int | None = None


class Workload(ABC):
    """Base class of workloads.

    Constructed once per trial as ``cls(config)``; then come ``setup()``, ``run()`` and ``cleanup()``. Inheriting is
    optional: a class of any package with ``setup`` and ``run`` that takes a config mapping runs unchanged.

    A nested ``class Config(pydantic.BaseModel)`` types the options: they are validated before the first trial, an
    unknown key is an error that lists the valid ones, and ``self.config`` is then an instance of it. Without one,
    ``self.config`` is a plain ``dict``.

    Class attributes:
        launch_mode: ``"single_process"``, or ``"distributed"`` for one process per rank, which finds the usual
            variables (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ...) and calls ``init_process_group()`` itself.
        min_world_size: smallest number of ranks of a distributed workload, and the default.
        result_scope: what ``run()`` returns in a rank: ``"global"``, when the result of rank 0 is that of the trial, or
            ``"rank_local"``, when each rank returns a result of its part; then the trial passes when all ranks pass,
            failures are counted together and listed in the order of the ranks, and the metrics are those of rank 0.
        timeout_sec: default deadline of a trial in seconds, from the hand-over to the trial's process until that
            process has ended; ``None`` for no deadline.
        raises: what an exception in ``run()`` is: ``"failure"`` of the workload, which is the default, or
            ``"infrastructure"``, which says nothing about it: the default of classes of AORTA's own package.
        data_files: paths of files and folders that decide what it does, or a class method that takes the options and
            returns them; when one changes, ``--aorta-resume`` keeps no earlier result. A relative path is one in the
            working directory, or else one beside the workload's file.
    """

    launch_mode: ClassVar[LaunchMode] = "single_process"
    min_world_size: ClassVar[int] = 1
    timeout_sec: ClassVar[float | None] = None
    data_files: ClassVar[Any] = ()
    result_scope: ClassVar[ResultScope] = "global"
    raises: ClassVar[Literal["failure", "infrastructure"]] = "failure"

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def setup(self) -> None:
        """Prepare: allocate, initialise process groups, build the model. A failure is ``infrastructure_failed``."""

    @abstractmethod
    def run(self) -> WorkloadResult:
        """Do the main work; ``passed`` is whether it met the workload's criterion."""

    def cleanup(self) -> None:  # noqa: B027  (optional on purpose)
        """Release what ``setup()`` took."""

    def progress(self, step: int, total: int | None = None) -> None:  # noqa: B027  (replaced by the runner)
        """Report that ``step`` (of ``total``) steps are done. Cheap; call it once per step.

        Replaced on the instance when a trial runs; outside of a trial it does nothing.
        """
