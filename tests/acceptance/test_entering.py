"""Environments that are entered: the trial runs in a container of the image, and all else is as on the host."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import stand_in_engine
from support.stage import Stage, text


@functools.cache
def _namespaces() -> bool:
    try:
        return subprocess.run([*stand_in_engine.UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"]).returncode == 0
    except OSError:
        return False


def install_stand_in(stage: Stage) -> dict[str, str]:
    if not _namespaces():
        pytest.skip("the stand-in of a container engine needs unshare, and the right to make namespaces")
    script = Path(stand_in_engine.__file__)
    engine = stage.write_file("bin/docker", f'#!/bin/sh\nexec {sys.executable} -S {script} "$@"\n')
    engine.chmod(0o755)
    return {"PATH": f"{engine.parent}:{os.environ['PATH']}", "STAND_IN_FOLDER": str(engine.parent)}


CONTAINED = """
    import os, subprocess, time
    from pathlib import Path
    import neighbour

    class Workload:
        name = "contained"
        default_config = {"act": "tells"}

        def __init__(self, config):
            self.config = config

        def setup(self):
            pass

        def run(self):
            if self.config["act"] == "hangs":
                subprocess.Popen(["sleep", "600"], start_new_session=True)
                self.hang()
            if self.config["act"] == "crashes":
                os.abort()
            print("in the log")
            names = ("HOME", "FROM_IMAGE", "CELL", "EXPORTED")
            return {"passed": True, "metrics": {
                "pid": os.getpid(), "cwd": os.getcwd(),
                "variables": {name: os.environ.get(name) for name in names},
            }}

        def hang(self):
            time.sleep(600)
"""


def environments(**fields: Any) -> dict[str, Any]:
    """One that is entered; its interpreter is that of these tests."""
    return {"boxed": {"docker": "lab/image:1", "enter": True, "venv": sys.prefix, "env": {"CELL": "1"}, **fields}}


def run(stage: Stage, variables: dict[str, str], *options: str, **fields: Any) -> pytest.RunResult:
    stage.write(contained=CONTAINED, neighbour="")
    registry = stage.write_registry(environments=environments(**fields))
    where = ("--aorta-registry-file", str(registry), "--aorta-environment", "boxed")
    return stage.run("contained.py", *where, *options, env=variables)


@pytest.fixture
def boxed(stage: Stage) -> tuple[Stage, dict[str, str]]:
    """A stage on which docker is the stand-in."""
    return stage, {**install_stand_in(stage), "EXPORTED": "on the host"}


Boxed = tuple[Stage, dict[str, str]]


def test_a_trial_runs_in_the_container_and_its_record_says_so(boxed: Boxed) -> None:
    stage, variables = boxed
    done = run(stage, variables, "--aorta-trials", "2")

    assert done.ret == 0, text(done)
    first, second = stage.trials().values()
    seen = first["result"]["metrics"]
    assert seen["variables"] == {
        "HOME": "/tmp" if os.getuid() else None,
        "FROM_IMAGE": "yes",
        "CELL": "1",
        "EXPORTED": None,
    }
    assert seen["cwd"] == str(stage.path)
    assert (seen["pid"] < 100, seen["pid"] != second["result"]["metrics"]["pid"]) == (True, True)
    place = first["execution_env"]
    assert (place["verified"], place["entered_with"], place["kind"]) == (True, "docker", "docker")
    found = "entered, and the trial ran in a docker container"
    assert place["claims"][0] == {"claim": "image lab/image:1", "verified": True, "found": found}
    assert first["env"]["runtime_context"]["container"]["detected_by"] == ["/.dockerenv"]
    assert first["env"]["env_vars"]["CELL"] == "1"
    log = stage.results / "contained" / first["artifacts"]["stdout"]
    assert log.read_text() == "in the log\n"
    stage.wait_until_alone()


def test_a_trial_that_hangs_in_a_container_is_ended_and_shows_its_stack(boxed: Boxed) -> None:
    stage, variables = boxed
    done = run(stage, variables, "--aorta-config", "act=hangs", "--aorta-timeout", "1")

    [trial] = stage.trials().values()
    assert (trial["exit_status"], trial["failure"]["phase"]) == ("timeout", "run"), text(done)
    assert "hang" in trial["failure"]["message"]
    stage.wait_until_alone()


def test_an_engine_that_fails_shows_its_command_and_what_it_said(boxed: Boxed) -> None:
    stage, variables = boxed
    done = run(stage, variables, docker="missing/image")

    [trial] = stage.trials().values()
    assert trial["exit_status"] == "infrastructure_failed"
    message = trial["failure"]["message"]
    assert message.startswith(f"`{stage.path}/bin/docker run --rm --name=pytest-aorta-")
    assert "ended with exit code 125 before it was ready\nError: No such image: missing/image" in message
    assert "No such image: missing/image" in text(done)
    assert trial["execution_env"]["verified"] is None


def test_without_an_engine_the_message_names_those_that_would_do(stage: Stage) -> None:
    run(stage, {"PATH": "/nowhere"})

    [trial] = stage.trials().values()
    assert trial["failure"]["message"] == (
        "environment 'boxed' (sidecar:registry.json) is to be entered, but docker or podman is not on PATH; "
        "the field 'enter' may name another engine: docker, podman, apptainer, singularity, enroot"
    )


# A real engine.


#: Where the limits and the control groups of this host are not to the taste of podman's defaults.
MODEST = """
[engine]
runtime = "runc"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
"""


@dataclass(frozen=True)
class Podman:
    """An image that is empty, with the programs of this host mounted into it."""

    variables: dict[str, str]
    options: list[str]
    image: str = "localhost/aorta-empty:1"

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["podman", "run", "--rm", "--network=host", *self.options, self.image, *words]
        return subprocess.run(command, env={**os.environ, **self.variables}, capture_output=True, text=True)


@pytest.fixture
def podman(stage: Stage) -> Podman:
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    archive = stage.path / "empty.tar"
    with tarfile.open(archive, "w"):
        pass
    paths = [Path(path) for path in (sys.prefix, sys.base_prefix, *sys.path)]
    own = {f"/{path.parts[1]}" for path in paths if len(path.parts) > 1}
    here = {f"/{name}" for name in ("bin", "lib", "lib64", "usr", "etc")} | own - {"/tmp", "/opt"}
    options = [f"--volume={path}:{path}:ro" for path in sorted(here) if os.path.isdir(path)]
    modest = {"CONTAINERS_CONF": str(stage.write_file("containers.conf", MODEST))}
    for engine in (Podman({}, options), Podman(modest, options)):
        subprocess.run(["podman", "import", archive, engine.image], check=True, capture_output=True)
        tried = engine.run("/bin/true")
        if tried.returncode == 0:
            return engine
    pytest.skip(f"podman runs no containers here: {tried.stderr.strip()}")


def test_a_trial_in_podman(stage: Stage, podman: Podman) -> None:
    done = run(stage, podman.variables, docker=podman.image, enter="podman", engine_options=podman.options)

    assert done.ret == 0, text(done)
    [trial] = stage.trials().values()
    assert trial["env"]["runtime_context"]["container"]["kind"] == "podman"
    assert (trial["execution_env"]["verified"], trial["execution_env"]["entered_with"]) == (True, "podman")
    assert trial["execution_env"]["digest"].startswith("sha256:")


def test_a_crash_in_a_container_is_that_signal(boxed: Boxed) -> None:
    stage, variables = boxed
    run(stage, variables, "--aorta-config", "act=crashes")

    [trial] = stage.trials().values()
    assert (trial["exit_status"], trial["failure"]["signal"]) == ("workload_failed", "SIGABRT")
    stage.wait_until_alone()
