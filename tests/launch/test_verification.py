"""What an environment claims, against what a trial has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.launch.record import check_claims, overall, warning_of
from pytest_aorta.probe.collect import EnvSnapshot
from pytest_aorta.registry import Environment

DIGEST = "sha256:" + "a" * 64


def environment(**fields: Any) -> Environment:
    return Environment("e", source_package="test", **fields)


def verified(claimed: Environment, env: dict[str, Any], digest: str | None = None) -> bool | None:
    return overall(check_claims(claimed, env, digest))


def within(**container: Any) -> dict[str, Any]:
    return {"runtime_context": {"container": {"kind": "podman", "image": None, "image_id": None, **container}}}


HOST = {"runtime_context": {"container": None}, "torch": {"hip": None}, "accelerator": {"rocm": None}}
UNKNOWN = EnvSnapshot.unavailable("it died").to_dict()


@pytest.mark.parametrize(
    ("image", "env", "expected", "finding"),
    [
        ("lab/x", HOST, False, "the trial ran in no container"),
        ("lab/x", UNKNOWN, None, "it is not known"),
        ("lab/x", within(kind="docker"), None, "in a docker container, which does not show its image"),
        ("lab/x", within(image="docker.io/lab/x:latest"), True, "of this image"),
        ("lab/x", within(image="localhost/lab/x:latest"), True, "of this image"),
        ("ubuntu:24.04", within(image="docker.io/library/ubuntu:24.04"), True, "of this image"),
        ("lab/x:2", within(image="docker.io/lab/x:1"), False, "container of docker.io/lab/x:1"),
        ("lab/x@sha256:1", within(image="docker.io/lab/x@sha256:1"), True, "of this image"),
        ("lab/x@sha256:1", within(image="docker.io/lab/x@sha256:2"), False, "of docker.io/lab/x@sha256:2"),
        ("lab/x:1", within(image="docker.io/lab/x@sha256:2"), None, "of docker.io/lab/x@sha256:2"),
        ("localhost:5000/x", within(image="localhost:5000/x:latest"), True, "of this image"),
        ("/images/x.sif", within(kind="singularity", image="/images/../images/x.sif"), True, "of this image"),
        ("/images/x.sif", within(kind="singularity", image="/images/y.sif"), False, "of /images/y.sif"),
    ],
)
def test_an_image(image: str, env: dict[str, Any], expected: bool | None, finding: str) -> None:
    claimed = environment(docker=image)
    [claim] = check_claims(claimed, env)

    assert (claim.claim, claim.verified) == (f"image {image}", expected)
    assert finding in claim.found
    assert (warning_of(claimed, [claim]) is None) == (expected is not False)


def test_the_id_of_an_image_counts_more_than_its_name_and_for_an_entered_one_any_container_will_do() -> None:
    env = within(image="lab/x:latest", image_id="a" * 64)
    assert verified(environment(docker="lab/renamed"), env, DIGEST) is True
    assert verified(environment(docker="lab/x"), env, "sha256:" + "b" * 64) is False

    entered = environment(docker="lab/x", enter=True)
    assert verified(entered, within()) is True
    assert verified(entered, HOST) is None


def test_a_venv_by_the_prefix_of_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "link").symlink_to("venv")
    here = environment(venv=str(tmp_path / "link"))

    assert verified(here, {"python": {"prefix": str(tmp_path / "venv")}}) is True
    [other] = check_claims(here, {"python": {"prefix": "/usr"}})
    assert (other.verified, other.found) == (False, "the interpreter's prefix is /usr")
    assert verified(here, UNKNOWN) is None


@pytest.mark.parametrize(
    ("claimed", "hip", "installed", "expected"),
    [
        ("7.0", "7.0.51831-a1b2c3", None, True),
        ("7.0.2", None, "7.0.2-115", True),
        ("rocm-7.0", None, "7.0.2-115", True),
        ("7.0.1", None, "7.0.2-115", False),
        ("7.0", "6.4.43482-x", "6.4.1-83", False),
        ("7.0", "7.0.51831", "6.4.1-83", True),
        ("7", None, "7.0.2-115", True),
        ("7.0", None, None, False),
    ],
)
def test_a_release_of_rocm(claimed: str, hip: str | None, installed: str | None, expected: bool) -> None:
    rocm = None if installed is None else {"path": "/opt/rocm-x", "version": installed}

    [claim] = check_claims(environment(rocm=claimed), {"torch": {"hip": hip}, "accelerator": {"rocm": rocm}})

    assert claim.verified is expected
    assert (hip or installed or "there is no ROCm") in claim.found


def test_rocm_by_its_path_or_by_the_wheel_of_a_torch_that_was_not_imported(tmp_path: Path) -> None:
    (tmp_path / "rocm-7.0").mkdir()
    (tmp_path / "rocm").symlink_to("rocm-7.0")
    there = {"accelerator": {"rocm": {"path": str(tmp_path / "rocm-7.0"), "version": "7.0"}}}
    assert verified(environment(rocm=str(tmp_path / "rocm")), there) is True
    assert verified(environment(rocm="/opt/rocm-6"), there) is False

    def of(version: str, **more: Any) -> bool | None:
        return verified(environment(rocm="7.0"), {"torch": {"imported": False, "version": version}, **more})

    assert (of("2.9.0+rocm7.0"), of("2.9.0+rocm6.4"), of("2.9.0a0+git123")) == (True, False, None)
    assert of("2.9.0a0+git123", accelerator={"rocm": None}) is False
    assert verified(environment(rocm="7.0"), UNKNOWN) is None


def test_of_several_claims_a_false_one_decides_and_the_warning_has_it_alone() -> None:
    claims = environment(docker="lab/x", rocm="7.0")

    found = check_claims(claims, {**within(image="lab/x"), "torch": {"hip": "6.4"}})

    assert [claim.verified for claim in found] == [True, False]
    assert overall(found) is False
    assert warning_of(claims, found) == (
        "trials of the environment 'e' (test) do not run in it: ROCm 7.0: torch was built for HIP 6.4"
    )
    assert verified(claims, {**within(), "torch": {"hip": "7.0"}}) is None
    assert verified(environment(launcher=("nice",)), HOST) is None
