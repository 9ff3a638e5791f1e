"""The command lines of container engines: how a trial's process is started in an image."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from pytest_aorta.registry import Environment
from pytest_aorta.registry.types import Engine
from pytest_aorta.runtime.zygote import TAG_WORD

#: Where the packages of this distribution are mounted; what they depend on has to be in the image.
PACKAGES = "/opt/pytest-aorta"

#: Engines for an image, first choice first, by the suffix of the image; of an image without one, the last row.
_BY_SUFFIX: tuple[tuple[tuple[str, ...], tuple[Engine, ...]], ...] = (
    ((".sif", ".simg"), ("apptainer", "singularity")),
    ((".sqsh", ".squashfs"), ("enroot",)),
    (("",), ("docker", "podman")),
)

Gpu = Literal["nvidia", "amd"]

_AMD_DEVICES = ("/dev/kfd", "/dev/dri")


@dataclass(frozen=True)
class Mount:
    """A folder of this host in a container."""

    source: str
    target: str
    writable: bool = True


@dataclass(frozen=True)
class Caller:
    """Who starts a container, and what of this host it shall have.

    Attributes:
        uid, gid: of the user.
        name: of the user.
        gpu: the kind of GPU that this host has.
        gpu_groups: groups that may use it.
    """

    uid: int
    gid: int
    name: str
    gpu: Gpu | None = None
    gpu_groups: tuple[int, ...] = ()

    @classmethod
    def here(cls, root: Path = Path("/")) -> Caller:
        """This process and its host."""
        uid = os.getuid()
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = str(uid)
        if (root / "dev/kfd").exists():
            files = [root / "dev/kfd", *sorted((root / "dev/dri").glob("render*"))]
            return cls(uid, os.getgid(), name, "amd", tuple(sorted({file.stat().st_gid for file in files})))
        return cls(uid, os.getgid(), name, "nvidia" if (root / "dev/nvidiactl").exists() else None)


def candidates(environment: Environment) -> tuple[Engine, ...]:
    """Engines that could start the environment's image, first choice first."""
    if isinstance(environment.enter, str):
        return (environment.enter,)
    image = environment.docker or ""
    return next(engines for suffixes, engines in _BY_SUFFIX if image.endswith(suffixes))


def choose_engine(
    environment: Environment, which: Callable[[str], str | None] = shutil.which
) -> tuple[Engine, str] | None:
    """The engine to start, with its path; ``None`` where there is none."""
    found = ((engine, which(engine)) for engine in candidates(environment))
    return next(((engine, path) for engine, path in found if path is not None), None)


def outermost(folders: Iterable[str]) -> list[str]:
    """Folders without those that lie in others of them, sorted. The root of the file system is left out."""
    kept: list[str] = []
    for folder in sorted({os.path.abspath(folder) for folder in folders} - {"/"}):
        if not any(PurePosixPath(folder).is_relative_to(other) for other in kept):
            kept.append(folder)
    return kept


def mounts(folders: Iterable[str], packages: Mapping[str, str]) -> list[Mount]:
    """What a trial needs: folders at their own places, and packages (name -> folder)."""
    own = [Mount(folder, folder) for folder in outermost(folders)]
    code = [Mount(folder, f"{PACKAGES}/{name}", writable=False) for name, folder in packages.items()]
    return [*own, *code]


def run_command(
    engine: Engine,
    program: str,
    image: str,
    *,
    mounts: Sequence[Mount],
    cwd: str,
    caller: Caller,
    options: Sequence[str] = (),
) -> tuple[str, ...]:
    """The words in front of what is to run in a container of the image.

    The container is called by the tag of the zygote. It shares network and shared memory with this host, as ranks and
    loaders need them, and the GPUs. The image has to be here: a download is no part of a trial.

    Args:
        engine: what starts it.
        program: the engine's path.
        image: as the engine calls it.
        mounts: folders of this host.
        cwd: working directory.
        caller: the user, and the host.
        options: further words for the engine, which win where it lets the last one win.
    """
    if engine in ("docker", "podman"):
        shared = _oci(engine, mounts, cwd, caller)
    elif engine == "enroot":
        shared = ["start", *(f"--mount={m.source}:{m.target}:none:x-create=dir,rbind,{_mode(m)}" for m in mounts)]
        if caller.gpu == "nvidia":
            shared.append("--env=NVIDIA_VISIBLE_DEVICES=all")
        if caller.gpu == "amd":
            shared += [f"--mount={device}:{device}:none:x-create=auto,rbind,rw" for device in _AMD_DEVICES]
    else:
        # Neither the variables of this host nor what is installed in its home folder.
        shared = ["exec", "--cleanenv", "--no-home", f"--pwd={cwd}"]
        shared += [f"--bind={m.source}:{m.target}:{_mode(m)}" for m in mounts]
        shared += {"nvidia": ["--nv"], "amd": ["--rocm"], None: []}[caller.gpu]
    return (program, *shared, *options, image)


def _oci(engine: Engine, mounts: Sequence[Mount], cwd: str, caller: Caller) -> list[str]:
    """What docker and podman have in common, and what not."""
    words = ["run", "--rm", f"--name={container_name()}", "--pull=never", "--network=host", "--ipc=host"]
    words += [f"--user={caller.uid}:{caller.gid}", "--security-opt=label=disable", f"--workdir={cwd}"]
    rootless = engine == "podman" and caller.uid != 0
    if rootless:
        words.append("--userns=keep-id")
    if caller.uid != 0:
        # The image has no such user: libraries that look for one read these first.
        words += ["--env=HOME=/tmp", f"--env=USER={caller.name}", f"--env=LOGNAME={caller.name}"]
    if caller.gpu == "nvidia":
        words.append("--gpus=all" if engine == "docker" else "--device=nvidia.com/gpu=all")
    if caller.gpu == "amd":
        words += [*(f"--device={device}" for device in _AMD_DEVICES), "--security-opt=seccomp=unconfined"]
        groups = ["keep-groups"] if rootless else list(map(str, caller.gpu_groups))
        words += [f"--group-add={group}" for group in groups]
    for mount in mounts:
        fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
        words.append("--mount=" + ",".join(map(_csv, fields if mount.writable else [*fields, "readonly"])))
    return words


def container_name() -> str:
    """The name of a zygote's container."""
    return f"pytest-aorta-{TAG_WORD}"


def stop_command(engine: Engine, program: str) -> tuple[str, ...]:
    """A command that ends the container; empty for an engine whose containers are mere processes of this host."""
    return (program, "kill", container_name()) if engine in ("docker", "podman") else ()


def _mode(mount: Mount) -> str:
    return "rw" if mount.writable else "ro"


def _csv(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if set(field) & set(',"') else field
