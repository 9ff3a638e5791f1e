from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_aorta.probe import host
from pytest_aorta.probe.host import own_name_lookup_ms
from pytest_aorta.probe.tool import ToolTimedOut


def test_a_name_that_the_file_has_is_not_looked_up(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost # not {os.uname().nodename}\n127.0.1.1\tother {os.uname().nodename}\n")
    assert own_name_lookup_ms(hosts) == 0


def test_any_other_is_and_the_time_is_measured(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost # {os.uname().nodename}\n")
    assert own_name_lookup_ms(hosts) > 0


def test_a_look_up_without_an_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    getent = tmp_path / "getent"
    getent.write_text("#!/bin/sh\nexec sleep 60\n")
    getent.chmod(0o755)
    (tmp_path / "hosts").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(host, "_PATIENCE", 0.2)
    with pytest.raises(ToolTimedOut, match=f"look-up of {os.uname().nodename} takes longer than 0.2 s"):
        own_name_lookup_ms(tmp_path / "hosts")
