"""The installed distributions and the digest over all of them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import sys
from typing import TYPE_CHECKING

from pytest_aorta.probe.guard import Guard
from pytest_aorta.probe.software import installed_distributions, packages

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_relevant_versions_and_a_digest_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"

    def install(site: Path, name: str, version: str) -> Path:
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        return folder

    install(first, "Torch", "2.13.0")
    install(first, "nvidia_nccl.cu12", "2.21.5")
    leftpad = install(first, "leftpad", "1.0")
    install(second, "torch", "2.0.0")  # which is not the one that is imported
    (first / "~orch-2.9.dist-info").mkdir()  # the remains of an interrupted installation
    monkeypatch.setattr(sys, "path", [str(first), str(second)])
    text = "leftpad==1.0\nnvidia-nccl-cu12==2.21.5\ntorch==2.13.0\n"
    guard = Guard()
    assert packages(installed_distributions(guard)) == {
        "versions": {"nvidia-nccl-cu12": "2.21.5", "torch": "2.13.0"},
        "count": 3,
        "digest": "sha256:" + hashlib.sha256(text.encode()).hexdigest(),
    }
    assert guard.reasons == []

    (leftpad / "METADATA").write_bytes(b"Name: \xff\xfe\n")
    assert packages(installed_distributions(guard))["count"] == 2
    (reason,) = guard.reasons
    assert reason.startswith("packages: 1 distribution(s) unreadable, the first: UnicodeDecodeError: ")


def test_the_packages_of_this_interpreter_are_those_that_importlib_finds() -> None:
    named = {(d.metadata["Name"], d.metadata["Version"]) for d in importlib.metadata.distributions()}
    known = installed_distributions(Guard())
    assert {re.sub(r"[-_.]+", "-", name).lower() for name, _ in named} == set(known)
    assert set(known.values()) <= {version for _, version in named}
