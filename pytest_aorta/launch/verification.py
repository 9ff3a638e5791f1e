"""Whether a trial ran where its environment says: what is claimed, against what the trial's own process has seen."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_aorta.registry import Environment

#: A part of a claim: whether it is true, where that can be told, and why.
Finding = tuple[bool | None, str]


@dataclass(frozen=True)
class Verification:
    """The claims of an environment.

    Attributes:
        verified: false if one is false; true if all are true; ``None`` where there are none, or one is not known.
        findings: one line for each.
        warning: for the user, if one is false.
    """

    verified: bool | None = None
    findings: tuple[str, ...] = ()
    warning: str | None = None


def verify(environment: Environment, env: Mapping[str, Any], digest: str | None = None) -> Verification:
    """Check the claims of an environment.

    Args:
        environment: of the trial.
        env: the snapshot that the trial has taken, as plain data.
        digest: of the claimed image, where it is known.
    """
    found: list[Finding] = []
    if environment.docker is not None:
        found.append(_image(environment, env.get("runtime_context") or {}, digest))
    if environment.venv is not None:
        found.append(_venv(environment.venv, env.get("python") or {}))
    if environment.rocm is not None:
        found.append(_rocm(environment.rocm, env.get("torch") or {}, env.get("accelerator") or {}))
    texts = tuple(text for _, text in found)
    if wrong := [text for value, text in found if value is False]:
        name = f"{environment.name!r} ({environment.source_package})"
        return Verification(False, texts, f"trials of the environment {name} do not run in it: {'; '.join(wrong)}")
    return Verification(True if found and all(value for value, _ in found) else None, texts)


def _image(environment: Environment, context: Mapping[str, Any], digest: str | None) -> Finding:
    image = environment.docker or ""
    if "container" not in context:
        return None, f"image {image}: it is not known whether the trial ran in a container"
    container = context["container"]
    if container is None:
        if environment.enter:
            return None, f"image {image}: entered, but nothing that the trial sees shows a container"
        return False, f"image {image}: the trial ran in no container"
    there = f"a {container['kind']} container"
    shown, shown_id = container.get("image"), container.get("image_id")
    if digest is not None and shown_id is not None:
        same = digest.removeprefix("sha256:") == shown_id.removeprefix("sha256:")
        return same, f"image {image}: the trial ran in {there} of {'this image' if same else shown or shown_id}"
    if shown is not None:
        same = _reference(shown) == _reference(image)
        return same, f"image {image}: the trial ran in {there} of {'this image' if same else shown}"
    if environment.enter:
        return True, f"image {image}: entered, and the trial ran in {there}"
    return None, f"image {image}: the trial ran in {there}, which does not show its image"


def _reference(image: str) -> str:
    """A reference in the form in which equal ones are equal: no default registry, a tag; of a file, its real path."""
    if image.startswith(("/", ".")):
        return os.path.realpath(image)
    name = image.removeprefix("docker://")
    for default in ("docker.io/", "library/", "localhost/"):
        name = name.removeprefix(default)
    return name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"


def _venv(venv: str, python: Mapping[str, Any]) -> Finding:
    prefix = python.get("prefix")
    if prefix is None:
        return None, f"venv {venv}: it is not known which interpreter ran the trial"
    same = prefix == venv or os.path.realpath(prefix) == os.path.realpath(os.path.expanduser(venv))
    return same, f"venv {venv}: the interpreter's prefix is {'this' if same else prefix}"


def _rocm(rocm: str, torch: Mapping[str, Any], accelerator: Mapping[str, Any]) -> Finding:
    installed = accelerator.get("rocm") or {}
    if rocm.startswith(("/", "~")):
        path = installed.get("path")
        same = path is not None and os.path.realpath(os.path.expanduser(rocm)) == path
        return same, f"ROCm {rocm}: " + (f"ROCm is in {path}" if path else "there is no ROCm")
    # A wheel names its release; of another torch that was not imported, it is not known what it was built for.
    wheel = re.search(r"\+rocm([\d.]+)", torch.get("version") or "")
    versions = {
        "torch was built for HIP": torch.get("hip"),
        "torch was built for ROCm": wheel[1] if wheel and not torch.get("hip") else None,
        "installed is ROCm": installed.get("version"),
    }
    there = {what: version for what, version in versions.items() if version}
    text = " and ".join(f"{what} {version}" for what, version in there.items()) or "there is no ROCm"
    if any(_is_release(version, rocm) for version in there.values()):
        return True, f"ROCm {rocm}: {text}"
    if "hip" in torch or wheel or ("rocm" in accelerator and not installed):
        return False, f"ROCm {rocm}: {text}"
    return None, f"ROCm {rocm}: it is not known what torch was built for"


def _is_release(version: str, claimed: str) -> bool:
    """Whether a version is of a release: 7.0.2-115 and 7.0.51831 are of 7.0, and 7.0.2 is of 7.0.2."""
    wanted = claimed.lower().removeprefix("rocm").lstrip("-v ").split(".")
    return version.partition("-")[0].split(".")[: len(wanted)] == wanted
