"""A graph of tasks in one legal order more: what differs from the order of its submission is a missing tag."""

from __future__ import annotations

import os
import runpy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, PositiveInt

from pytest_aorta.runtime import HazardWarning, Worker
from pytest_aorta.trials.execution import TRIAL_INDEX
from pytest_aorta.trials.workload import Workload, WorkloadResult


def checked_graph(text: str) -> str:
    """``FILE:function``; raises ``ValueError`` for what names no file."""
    file, colon, function = text.rpartition(":")
    if not colon or not function.isidentifier() or not Path(file).is_file():
        raise ValueError(f"{text!r} is not FILE:function, such as pipeline.py:main, with a file that is there")
    return f"{os.path.abspath(file)}:{function}"


class Graph(Workload):
    """Calls ``function(worker)``, whose runs are carried out as submitted and in the order of the trial's number.

    Order 0 is that of the submission once more, 1 starts the last ready task first, the others choose at random.
    """

    class Config(BaseModel):
        """Options of the workload."""

        model_config = ConfigDict(extra="forbid")

        graph: Annotated[str, AfterValidator(checked_graph)]
        slots: PositiveInt = 2

    config: Config

    @classmethod
    def data_files(cls, options: Config) -> list[str]:
        """The file with the graph."""
        return [options.graph.rpartition(":")[0]]

    def setup(self) -> None:
        """Load the function."""
        file, _, name = self.config.graph.rpartition(":")
        self._function: Callable[[Worker], object] = runpy.run_path(file)[name]

    def run(self) -> WorkloadResult:
        """Run it in both orders."""
        found: list[str] = []
        hashes: dict[str, str] = {}

        class Replaying(Worker):
            def run(self, *args: Any, **options: Any) -> None:
                super().run(*args, **options)
                found.extend(self.differences)
                for task in self.orders[-1].tasks:
                    hashes.update({f"{len(hashes)} {task.label} {name}": it for name, it in task.outputs().items()})

        order = int(os.environ.get(TRIAL_INDEX, "0"))
        with (
            warnings.catch_warnings(),
            Replaying(3, num_sub_workers=self.config.slots, replay_orders=[order]) as worker,
        ):
            warnings.simplefilter("ignore", HazardWarning)
            self._function(worker)
        if not hashes:
            raise RuntimeError(f"{self.config.graph} has run no graph with worker.run(build)")
        details = [{"message": text} for text in found]
        return WorkloadResult(
            not found, len(found), failure_details=details, metrics={"order": order, "hashes": hashes}
        )
