"""The health check of a trial's agent, under torch's own variable for it."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from support.http_answers import answer_of, free_port, refuses
from support.stage import Stage

WORKLOAD = """
import os
import time


class Waits:
    launch_mode = "distributed"
    min_world_size = 2

    def __init__(self, config): pass
    def setup(self): pass

    def run(self):
        while not os.path.exists("go"):
            time.sleep(0.05)
        if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("the first attempt")
        return {"passed": True}
"""


def given(port: object) -> tuple[str, ...]:
    return ("--aorta-extra-env", f"TORCHELASTIC_HEALTH_CHECK_PORT={port}")


@pytest.fixture
def waits(stage: Stage) -> Stage:
    stage.write(waits=WORKLOAD)
    return stage


def failure_in(stage: Stage) -> dict[str, Any]:
    trial = stage.trial("Waits/trial_0.json")
    assert trial["exit_status"] == "infrastructure_failed"
    failure: dict[str, Any] = trial["failure"]
    return failure


@pytest.mark.slow
def test_it_answers_while_the_ranks_run_and_notices_a_stopped_agent(waits: Stage) -> None:
    port = free_port()
    process = waits.start(
        "waits.py", *given(port), "--aorta-timeout", "100", "--aorta-elastic", "max_restarts=1", "--aorta-trials", "2"
    )
    waits.wait_until(lambda: not refuses(port))
    status, said = answer_of(port)
    assert status == 200
    assert said["limit"] == 60

    os.kill(said["agent"], signal.SIGSTOP)
    waits.wait_until(lambda: answer_of(port)[1]["seconds_since_last_look"] > 2)
    os.kill(said["agent"], signal.SIGCONT)
    waits.wait_until(lambda: answer_of(port)[1]["seconds_since_last_look"] < 1)

    # The next trial, and the next attempt, have the same port.
    Path(waits.path, "go").touch()
    assert "2 passed" in waits.finish(process).stdout.str()
    assert [trial["elastic"]["restarts"] for trial in waits.trials().values()] == [1, 1]
    assert refuses(port)
    assert waits.left_running() == []


@pytest.mark.slow
def test_a_port_that_is_taken_fails_the_trial_with_one_message(waits: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        waits.run("waits.py", *given(port))
    assert failure_in(waits)["message"] == (
        f"the agent failed: TORCHELASTIC_HEALTH_CHECK_PORT={port}: Address already in use; give a free port; with "
        "--aorta-slots and -n, several trials would listen on it at the same time"
    )


@pytest.mark.slow
def test_what_is_no_port_fails_the_trial_with_one_message(waits: Stage) -> None:
    waits.run("waits.py", *given("http"))
    assert failure_in(waits)["message"] == (
        "the agent failed: TORCHELASTIC_HEALTH_CHECK_PORT='http': expected a port from 1 to 65535"
    )
