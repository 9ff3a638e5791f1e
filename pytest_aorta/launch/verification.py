"""Whether a trial ran where its environment says: what is claimed, against what the trial's own process has seen."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_aorta.registry import Environment
from pytest_aorta.trials.result import Claim

#: Whether a claim is true, where that can be checked, and what was found.
Finding = tuple[bool | None, str]


def check_claims(environment: Environment, env: Mapping[str, Any], digest: str | None = None) -> list[Claim]:
    """Check what an environment claims; empty where it claims nothing.

    Args:
        environment: of the trial.
        env: the snapshot that the trial has taken, as plain data.
        digest: of the claimed image, where it is known.
    """
    image, venv, rocm = environment.docker, environment.venv, environment.rocm
    found: dict[str, Finding] = {}
    if image is not None:
        found[f"image {image}"] = _image(image, bool(environment.enter), env.get("runtime_context") or {}, digest)
    if venv is not None:
        found[f"venv {venv}"] = _venv(venv, env.get("python") or {})
    if rocm is not None:
        found[f"ROCm {rocm}"] = _rocm(rocm, env.get("torch") or {}, env.get("accelerator") or {})
    return [Claim(claim=claim, verified=value, found=text) for claim, (value, text) in found.items()]


def overall(claims: Sequence[Claim]) -> bool | None:
    """False if one is false; true if all are true; ``None`` where there are none, or one is not known."""
    values = [claim.verified for claim in claims]
    return False if False in values else None if not values or None in values else True


def warning_of(environment: Environment, claims: Sequence[Claim]) -> str | None:
    """What the user should know, if a claim is false."""
    wrong = "; ".join(f"{claim.claim}: {claim.found}" for claim in claims if claim.verified is False)
    name = f"{environment.name!r} ({environment.source_package})"
    return f"trials of the environment {name} do not run in it: {wrong}" if wrong else None


def _image(image: str, entered: bool, context: Mapping[str, Any], digest: str | None) -> Finding:
    if "container" not in context:
        return None, "it is not known whether the trial ran in a container"
    container = context["container"]
    if container is None:
        if entered:
            return None, "entered, but nothing that the trial sees shows a container"
        return False, "the trial ran in no container"
    there = f"a {container['kind']} container"
    shown, shown_id = container.get("image"), container.get("image_id")
    if digest is not None and shown_id is not None:
        same = digest.removeprefix("sha256:") == shown_id.removeprefix("sha256:")
        return same, f"the trial ran in {there} of {'this image' if same else shown or shown_id}"
    if shown is not None:
        same = _are_equal(shown, image)
        return same, f"the trial ran in {there} of {'this image' if same else shown}"
    if entered:
        return True, f"entered, and the trial ran in {there}"
    return None, f"the trial ran in {there}, which does not show its image"


def _are_equal(one: str, other: str) -> bool | None:
    """Whether references are of one image; ``None`` where one has a tag and the other a digest."""
    digests = [reference.partition("@")[2] for reference in (one, other)]
    if any(digests):
        return digests[0] == digests[1] if all(digests) else None
    return _reference(one) == _reference(other)


def _reference(image: str) -> str:
    """A reference in the form in which equal ones are equal: no default registry, a tag; of a file, its real path."""
    if image.startswith(("/", ".")):
        return os.path.realpath(image)
    name = image.removeprefix("docker://")
    for default in ("docker.io/", "library/", "localhost/"):
        name = name.removeprefix(default)
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _venv(venv: str, python: Mapping[str, Any]) -> Finding:
    prefix = python.get("prefix")
    if prefix is None:
        return None, "it is not known which interpreter ran the trial"
    same = prefix == venv or os.path.realpath(prefix) == os.path.realpath(os.path.expanduser(venv))
    return same, f"the interpreter's prefix is {'this' if same else prefix}"


def _rocm(rocm: str, torch: Mapping[str, Any], accelerator: Mapping[str, Any]) -> Finding:
    installed = accelerator.get("rocm") or {}
    if rocm.startswith(("/", "~")):
        path = installed.get("path")
        same = path is not None and os.path.realpath(os.path.expanduser(rocm)) == path
        return same, "" + (f"ROCm is in {path}" if path else "there is no ROCm")
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
        return True, f"{text}"
    if "hip" in torch or wheel or ("rocm" in accelerator and not installed):
        return False, f"{text}"
    return None, "it is not known what torch was built for"


def _is_release(version: str, claimed: str) -> bool:
    """Whether a version is of a release: 7.0.2-115 and 7.0.51831 are of 7.0, and 7.0.2 is of 7.0.2."""
    wanted = claimed.lower().removeprefix("rocm").lstrip("-v ").split(".")
    return version.partition("-")[0].split(".")[: len(wanted)] == wanted
