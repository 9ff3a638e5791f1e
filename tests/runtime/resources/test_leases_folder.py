"""The folder in which processes agree on who holds a device."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
from support.lease_users import is_refused

from pytest_aorta.runtime.resources.leases import LeaseError, Leases, default_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "leases"


def test_all_processes_of_a_user_agree_on_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_AORTA_LEASES_DIR", raising=False)
    monkeypatch.setattr(platform, "node", lambda: "node 7/../x")
    folder = default_folder(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))

    assert default_folder(tmp_path) == folder == tmp_path / f"pytest-aorta-{os.getuid()}/node_7_.._x/devices"
    assert folder.parent.parent.stat().st_mode & 0o777 == 0o700
    with Leases((0,), folder).acquire(1):
        assert is_refused(Leases((0,), default_folder(tmp_path)), 1)


def test_hosts_that_share_the_folder_have_devices_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_AORTA_LEASES_DIR", raising=False)
    folders = set()
    for name in ("one", "two"):
        monkeypatch.setattr(platform, "node", lambda name=name: name)
        folders.add(default_folder(tmp_path))

    assert len(folders) == 2


def test_a_variable_names_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_AORTA_LEASES_DIR", str(tmp_path / "shared/by us"))

    pool = Leases((0,))
    with pool.acquire(1):
        assert pool.folder == tmp_path / "shared/by us"
        assert list(pool.folder.iterdir())


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_AORTA_LEASES_DIR", raising=False)
    user = os.getuid()
    ours = tmp_path / f"pytest-aorta-{user}"

    ours.symlink_to(tmp_path)
    with pytest.raises(LeaseError, match=f"{ours} must be a folder that belongs to user {user}"):
        default_folder(tmp_path)

    ours.unlink()
    ours.mkdir()
    ours.chmod(0o777)
    with pytest.raises(LeaseError, match="no other user can write to"):
        default_folder(tmp_path)

    ours.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    (tmp_path / f"pytest-aorta-{user + 1}").mkdir(mode=0o700)  # not theirs
    with pytest.raises(LeaseError, match=f"belongs to user {user + 1}"):
        default_folder(tmp_path)


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_AORTA_LEASES_DIR", raising=False)

    with pytest.raises(LeaseError, match=f"{tmp_path}/none/pytest-aorta-.*the lock files of devices need a folder"):
        default_folder(tmp_path / "none")
