"""pytest plugin: where the time of a trial goes, as medians per phase. It looks inside pytest-aorta, from outside."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Generator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

#: Phases of a trial; each goes from one stamp to the next, the last one to the first stamp of the next trial.
_PHASES = ("hand over", "child starts", "child lives", "child ends", "record and reports", "write", "next item")
_STAMPS = ("item", "handed", "env", "lived", "ended", "write", "written")

_trials: list[dict[str, float]] = []


def _stamp(name: str) -> None:
    if _trials:
        _trials[-1].setdefault(name, time.perf_counter())


def _wrap(owner: Any, name: str, before: Callable[[], None], after: Callable[[Any], None]) -> None:
    original = getattr(owner, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        before()
        result = original(*args, **kwargs)
        after(result)
        return result

    setattr(owner, name, wrapper)


def pytest_configure() -> None:
    from pytest_aorta.plugin.writer import TrialWriter
    from pytest_aorta.runtime.zygote import Task, Zygote

    def message(event: dict[str, Any] | None) -> None:
        if event is None:
            _stamp("ended")
        elif event["type"] in ("env", "lived"):
            _stamp(event["type"])

    _wrap(Zygote, "start_task", lambda: None, lambda task: _stamp("handed"))
    _wrap(Task, "next_message", lambda: None, message)
    _wrap(TrialWriter, "write", lambda: _stamp("write"), lambda result: _stamp("written"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, Any, Any]:
    _trials.append({"item": time.perf_counter()})
    return (yield)


def pytest_sessionfinish() -> None:
    warm = [trial for trial in _trials[3:] if set(_STAMPS) <= trial.keys()]
    phases: dict[str, list[float]] = {name: [] for name in _PHASES}
    for trial, following in pairwise(warm):
        times = [trial[stamp] for stamp in _STAMPS] + [following["item"]]
        for name, (start, end) in zip(_PHASES, pairwise(times), strict=True):
            phases[name].append(end - start)
    medians = {name: statistics.median(times) for name, times in phases.items() if times}
    Path(os.environ["BENCHMARK_OUTPUT"]).write_text(json.dumps(medians))
