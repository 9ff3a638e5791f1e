"""What is wrapped around the interpreter: a container, control group limits, a virtual or conda environment."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.probe.cgroup import cgroup_limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_aorta.probe.guard import Facts, Guard

# Strongest first: a pod's container is also a docker or containerd one, and pod is what its user calls it.
_KINDS = ("singularity", "kubernetes", "podman", "docker", "lxc", "other")

_FILES = {
    ".singularity.d": "singularity",
    "var/run/secrets/kubernetes.io": "kubernetes",
    "run/.containerenv": "podman",
    ".dockerenv": "docker",
}
# Only whether these are set is used; of their values, only the image's path is recorded.
_VARIABLES = {
    "APPTAINER_CONTAINER": "singularity",
    "SINGULARITY_CONTAINER": "singularity",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
}
_IMAGE_VARIABLES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
_CGROUPS = {
    "kubepods": "kubernetes",
    "libpod": "podman",
    "docker": "docker",
    "lxc": "lxc",
    "containerd": "other",
}
_CONTAINER_ID = re.compile(r"/(?:overlay-)?containers/([0-9a-f]{64})/\S* /etc/(?:hostname|hosts|resolv\.conf) ")
_CGROUP_ID = re.compile(r"[0-9a-f]{64}")


def runtime_context(guard: Guard) -> Facts:
    """Facts about container, control group and environment; ``None`` for each that is not there."""
    return guard.facts(
        "runtime_context",
        {"container": container, "cgroup": cgroup_limits, "venv": virtual_environment, "conda": conda_environment},
    )


def container(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Facts | None:
    """The container around this process: ``kind``, ``detected_by``; ``id``, ``image``, ``image_id`` if shown."""
    cgroup = _read(root / "proc/self/cgroup")
    evidence = [(kind, f"/{name}") for name, kind in _FILES.items() if (root / name).exists()]
    evidence += [(kind, name) for name, kind in _VARIABLES.items() if name in environ]
    evidence += [(kind, f"cgroup {word}") for word, kind in _CGROUPS.items() if re.search(rf"[/-]{word}\b", cgroup)]
    if not evidence:
        return None
    podman = _settings(_read(root / "run/.containerenv"))
    images = [_unquoted(podman, "image"), *(environ.get(name) for name in _IMAGE_VARIABLES)]
    identity = _CONTAINER_ID.search(_read(root / "proc/self/mountinfo"))
    in_cgroup = _CGROUP_ID.search(cgroup)
    return {
        "kind": min((kind for kind, _ in evidence), key=_KINDS.index),
        "detected_by": [sign for _, sign in evidence],
        "id": identity[1] if identity else in_cgroup[0] if in_cgroup else None,
        "image": next((image for image in images if image), None),
        "image_id": _unquoted(podman, "imageid"),
    }


def virtual_environment() -> Facts | None:
    """The virtual environment this interpreter runs in, by ``sys.prefix``: ``VIRTUAL_ENV`` may be another shell's."""
    if sys.prefix == sys.base_prefix:
        return None
    settings = _settings(_read(Path(sys.prefix, "pyvenv.cfg")))
    return {
        "path": sys.prefix,
        "base_prefix": sys.base_prefix,
        "system_site_packages": settings.get("include-system-site-packages", "").lower() == "true",
    }


def conda_environment() -> Facts | None:
    """The conda environment this interpreter belongs to, by its ``conda-meta`` folder."""
    if not Path(sys.base_prefix, "conda-meta").is_dir():
        return None
    return {"path": sys.base_prefix, "name": Path(sys.base_prefix).name}


def _unquoted(settings: Mapping[str, str], name: str) -> str | None:
    return settings.get(name, "").strip('"') or None


def _settings(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
