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

        def __init__(self, config):
            pass

        def setup(self):
            pass

        def run(self):
            act = os.environ.get("ACT")
            if act == "hangs":
                subprocess.Popen(["sleep", "600"], start_new_session=True)
                self.hang()
            if act == "crashes":
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

#: One that is entered; its interpreter is that of these tests.
BOXED: dict[str, Any] = {"docker": "lab/image:1", "enter": True, "venv": sys.prefix, "env": {"CELL": "1"}}


def run(
    stage: Stage, variables: dict[str, str], environments: dict[str, dict[str, Any]]
) -> tuple[pytest.RunResult, dict[str, dict[str, Any]]]:
    """The end of pytest, and the record of the trial in each environment."""
    stage.write(contained=CONTAINED, neighbour="")
    registry = stage.write_registry(environments=environments)
    axis = [word for name in environments for word in ("--aorta-environment", name)]
    done = stage.run("contained.py", "--aorta-registry-file", registry, "--aorta-timeout", "5", *axis, env=variables)
    stage.wait_until_alone()
    return done, {trial["execution_env"]["name"]: trial for trial in stage.trials().values()}


@pytest.mark.slow
def test_trials_run_in_containers_where_each_ends_as_on_the_host(stage: Stage) -> None:
    """Docker is the stand-in."""
    variables = {**install_stand_in(stage), "EXPORTED": "on the host"}
    environments = {
        "boxed": BOXED,
        "hangs": {**BOXED, "env": {"ACT": "hangs"}},
        "crashes": {**BOXED, "env": {"ACT": "crashes"}},
        "missing": {**BOXED, "docker": "missing/image"},
    }
    done, trials = run(stage, variables, environments)

    boxed = trials["boxed"]
    assert boxed["exit_status"] == "ok", text(done)
    seen = boxed["result"]["metrics"]
    assert seen["variables"] == {
        "HOME": "/tmp" if os.getuid() else None,
        "FROM_IMAGE": "yes",
        "CELL": "1",
        "EXPORTED": None,
    }
    assert (seen["pid"] < 100, seen["cwd"]) == (True, str(stage.path))
    place = boxed["execution_env"]
    assert (place["verified"], place["entered_with"], place["kind"]) == (True, "docker", "docker")
    found = "entered, and the trial ran in a docker container"
    assert place["claims"][0] == {"claim": "image lab/image:1", "verified": True, "found": found}
    assert boxed["env"]["runtime_context"]["container"]["detected_by"] == ["/.dockerenv"]
    assert boxed["env"]["env_vars"]["CELL"] == "1"
    [log] = stage.results.glob("contained/*boxed*/trial_0/stdout.log")
    assert log.read_text() == "in the log\n"

    hangs, crashes, missing = (trials[name] for name in ("hangs", "crashes", "missing"))
    assert (hangs["exit_status"], hangs["failure"]["phase"]) == ("timeout", "run"), text(done)
    assert "hang" in hangs["failure"]["message"]
    assert (crashes["exit_status"], crashes["failure"]["signal"]) == ("workload_failed", "SIGABRT")
    assert (missing["exit_status"], missing["execution_env"]["verified"]) == ("infrastructure_failed", None)
    message = missing["failure"]["message"]
    assert message.startswith(f"`{stage.path}/bin/docker run --rm --name=pytest-aorta-")
    assert "ended with exit code 125 before it was ready\nError: No such image: missing/image" in message
    assert "No such image: missing/image" in text(done)


def test_without_an_engine_the_message_names_those_that_would_do(stage: Stage) -> None:
    _, trials = run(stage, {"PATH": "/nowhere"}, {"boxed": BOXED})
    assert trials["boxed"]["failure"]["message"] == (
        "environment 'boxed' (sidecar:registry.json) is to be entered, but docker or podman is not on PATH; "
        "other engines are launcher prefixes"
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
    engine = {"docker": podman.image, "enter": "podman", "engine_options": podman.options}
    done, trials = run(stage, podman.variables, {"boxed": {**BOXED, **engine}})

    assert done.ret == 0, text(done)
    trial = trials["boxed"]
    assert trial["env"]["runtime_context"]["container"]["kind"] == "podman"
    assert (trial["execution_env"]["verified"], trial["execution_env"]["entered_with"]) == (True, "podman")
    assert trial["execution_env"]["digest"].startswith("sha256:")
