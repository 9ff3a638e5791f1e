from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from pytest_aorta.launch.launch_mode import LaunchModeError
from pytest_aorta.launch.nodes import seal
from pytest_aorta.launch.nodes.seal import FILE, VARIABLE, ForgedValue, Seal, secret_of


def test_all_nodes_that_see_a_results_directory_have_one_secret(tmp_path: Path) -> None:
    found: list[str] = []
    nodes = [threading.Thread(target=lambda: found.append(secret_of(tmp_path / "results", {}))) for _ in range(8)]
    for node in nodes:
        node.start()
    for node in nodes:
        node.join()

    assert len(found) == 8
    assert len(set(found)) == 1
    assert secret_of(tmp_path / "other", {}) != found[0]


def test_only_its_user_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        secret_of(tmp_path, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_a_variable_is_for_nodes_that_do_not_see_the_same_directory(tmp_path: Path) -> None:
    assert secret_of(tmp_path, {VARIABLE: "of the job"}) == "of the job"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_holds_no_secret_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "_PATIENCE", 0.0)
    (tmp_path / FILE).write_text("no secret")
    with pytest.raises(LaunchModeError, match=f"{FILE}: it does not hold 64 hexadecimal digits; remove the file, or"):
        secret_of(tmp_path, {})


def test_what_is_closed_can_be_opened_with_the_same_secret_for_the_same_key_only() -> None:
    ours = Seal("secret")
    sealed = ours.close("a", b"value")
    assert ours.open("a", sealed) == b"value"
    assert ours.close("a", b"value") == sealed

    changed = sealed[:-1] + b"!"
    for owner, key, found in (
        (Seal("another"), "a", sealed),
        (ours, "b", sealed),
        (ours, "a", changed),
        (ours, "a", b"value"),
        (ours, "a", b""),
    ):
        with pytest.raises(ForgedValue):
            owner.open(key, found)


def test_keys_do_not_show_the_secret() -> None:
    assert "hush" not in Seal("hush").hello
    assert Seal("hush").prefix != Seal("other").prefix
