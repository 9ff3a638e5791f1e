"""The installed distributions and the digest over all of them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_aorta.probe.guard import Facts, Guard
from pytest_aorta.probe.software import (
    installed_distributions,
    packages,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that distributions are found in."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    (tmp_path / "second").mkdir()
    (tmp_path / "first").mkdir()
    return tmp_path / "first"


def described(guard: Guard | None = None) -> Facts:
    return packages(installed_distributions(guard or Guard()))


def install(site: Path, name: str, version: str) -> None:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_relevant_versions_and_a_digest_of_all(site: Path) -> None:
    install(site, "Torch", "2.13.0")
    install(site, "nvidia_nccl.cu12", "2.21.5")
    install(site, "leftpad", "1.0")
    text = "leftpad==1.0\nnvidia-nccl-cu12==2.21.5\ntorch==2.13.0\n"
    assert described() == {
        "versions": {"nvidia-nccl-cu12": "2.21.5", "torch": "2.13.0"},
        "count": 3,
        "digest": "sha256:" + hashlib.sha256(text.encode()).hexdigest(),
    }


def test_of_two_copies_the_one_that_is_imported_counts(site: Path) -> None:
    install(site.with_name("second"), "torch", "2.0.0")
    install(site, "torch", "2.13.0")
    assert described()["versions"] == {"torch": "2.13.0"}


def test_the_remains_of_an_interrupted_installation_are_no_distribution(site: Path) -> None:
    (site / "~orch-2.9.dist-info").mkdir()
    guard = Guard()
    assert described(guard)["count"] == 0
    assert guard.reasons == []


def test_an_unreadable_distribution_is_a_reason_and_hides_no_other(site: Path) -> None:
    install(site, "torch", "2.13.0")
    install(site, "leftpad", "1.0")
    (site / "leftpad-1.0.dist-info" / "METADATA").write_bytes(b"Name: \xff\xfe\n")
    guard = Guard()
    assert described(guard)["versions"] == {"torch": "2.13.0"}
    assert len(guard.reasons) == 1
    assert guard.reasons[0].startswith("packages: 1 distribution(s) unreadable, the first: UnicodeDecodeError: ")


def test_the_packages_of_this_interpreter_are_those_that_importlib_finds() -> None:
    named = {(d.metadata["Name"], d.metadata["Version"]) for d in importlib.metadata.distributions()}
    known = installed_distributions(Guard())
    assert {re.sub(r"[-_.]+", "-", name).lower() for name, _ in named} == set(known)
    assert set(known.values()) <= {version for _, version in named}
