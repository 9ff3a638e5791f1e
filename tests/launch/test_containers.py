"""The command lines of container engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.launch.environment import (
    Caller,
    Mount,
    candidates,
    choose_engine,
    mounts,
    run_command,
)
from pytest_aorta.registry import Engine, Environment
from pytest_aorta.runtime.zygote import TAG_WORD

USER = Caller(1000, 100, "me")
ROOT = Caller(0, 0, "root")
PROJECT = [Mount("/project/a,b", "/project/a,b"), Mount("/lib/x", "/opt/x", "ro")]


def line(engine: Engine, caller: Caller = USER, **changes: Any) -> str:
    settings: dict[str, Any] = {"mounts": PROJECT[1:], "cwd": "/project", "caller": caller, **changes}
    return " ".join(run_command(engine, f"/usr/bin/{engine}", "lab/x:1", **settings))


def test_the_command_line_of_each_engine() -> None:
    assert line("docker", options=("--shm-size=8g",)) == (
        f"/usr/bin/docker run --rm --name=pytest-aorta-{TAG_WORD} --pull=never --network=host --ipc=host "
        "--user=1000:100 --security-opt=label=disable --workdir=/project "
        "--env=HOME=/tmp --env=USER=me --env=LOGNAME=me "
        "--mount=type=bind,source=/lib/x,target=/opt/x,readonly --shm-size=8g lab/x:1"
    )
    # A path with a comma stays one field.
    assert '--mount=type=bind,"source=/project/a,b","target=/project/a,b" ' in line("docker", mounts=PROJECT[:1])
    # podman keeps the user where it has no root.
    assert "--userns=keep-id" in line("podman")
    assert "--userns" not in line("podman", ROOT)


def test_the_gpus_of_this_host_are_in_the_container() -> None:
    cases: list[tuple[Engine, int, Any, list[str]]] = [
        ("docker", 0, "nvidia", ["--gpus=all"]),
        ("podman", 0, "nvidia", ["--device=nvidia.com/gpu=all"]),
        ("docker", 0, "amd", ["--device=/dev/kfd", "--device=/dev/dri", "--group-add=44", "--group-add=109"]),
        ("podman", 1000, "amd", ["--device=/dev/kfd", "--group-add=keep-groups"]),
    ]
    for engine, uid, gpu, words in cases:
        with_gpu = line(engine, Caller(uid, uid, "me", gpu, (44, 109)))
        without = line(engine, Caller(uid, uid, "me"))

        assert [word for word in words if f" {word} " not in with_gpu] == []
        assert [word for word in words if word in without] == []


def test_what_this_host_has(tmp_path: Path) -> None:
    assert Caller.here(tmp_path).gpu is None
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/nvidiactl").touch()
    assert Caller.here(tmp_path).gpu == "nvidia"
    for name in ("kfd", "dri/renderD128"):
        (tmp_path / "dev" / name).touch()
    there = Caller.here(tmp_path)
    assert (there.gpu, there.gpu_groups) == ("amd", ((tmp_path / "dev/kfd").stat().st_gid,))


def test_folders_in_one_another_are_mounted_once_beside_the_packages() -> None:
    found = mounts(["/home/p/results", "/home/p", "/home/pp", "/", "/home/p/"], {"aorta_workloads": "/src/loads"})
    assert found == [
        Mount("/home/p", "/home/p"),
        Mount("/home/pp", "/home/pp"),
        Mount("/src/loads", "/opt/pytest-aorta/aorta_workloads", "ro"),
    ]


@pytest.mark.parametrize(("enter", "engines"), [(True, ("docker", "podman")), ("podman", ("podman",))])
def test_the_engines_that_may_enter_an_image(enter: Any, engines: tuple[str, ...]) -> None:
    assert candidates(Environment("e", docker="rocm/pytorch:latest", enter=enter, source_package="test")) == engines


def test_the_first_engine_that_is_there() -> None:
    environment = Environment("e", docker="x", enter=True, source_package="test")

    assert choose_engine(environment, {"podman": "/bin/podman"}.get) == ("podman", "/bin/podman")
    assert choose_engine(environment, {"enroot": "/bin/enroot"}.get) is None
