"""What a zygote, or a task with an interpreter of its own, loads first: its time is limited, and reported."""

from __future__ import annotations

from typing import Any

import pytest
from support.nursery import Nursery
from support.processes import MARK

from pytest_aorta.runtime.zygote import StartLimits, Zygote, ZygoteTimeout

LOADS = """
    import os, subprocess, time
    def wait_for_ever():
        open("begun", "w").close()
        time.sleep(600)
    def load(argument):
        print("loading", flush=True)
        if argument:
            subprocess.Popen(["sleep", "600"], env={"MARK": os.environ["MARK"]}, start_new_session=True)
            wait_for_ever()
    def prepare(argument):
        time.sleep(0.3)
        return {}
    """.replace("MARK", MARK)


def loading(nursery: Nursery, argument: Any, **fields: Any) -> Zygote:
    """A zygote of a module that loads something first."""
    name = nursery.module(LOADS)
    return nursery.start("", load=f"{name}:load", prepare=f"{name}:prepare", argument=argument, **fields)


def test_what_is_loaded_may_hang_and_then_shows_its_stacks_and_is_ended_with_all_that_it_has_started(
    nursery: Nursery,
) -> None:
    zygote = loading(nursery, True)

    with pytest.raises(ZygoteTimeout, match=r"^not ready after 0\.3 s\nloading") as caught:
        zygote.wait_ready(StartLimits(load=0.3, grace=5))

    assert (caught.value.phase, caught.value.limit) == ("import", 0.3)
    assert "in wait_for_ever" in caught.value.stacks
    assert nursery.alive() == []


def test_the_limit_for_what_is_loaded_is_for_nothing_else(nursery: Nursery) -> None:
    zygote = loading(nursery, False)

    zygote.wait_ready(StartLimits(load=0.25))

    assert zygote.load_sec is not None
    assert zygote.load_sec < 0.25
