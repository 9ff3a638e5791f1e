"""A real etcd, with the old interface that torch speaks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def etcd_command(client: str, peer: str, folder: Path) -> list[str]:
    """The command line of an etcd; without one, the test is skipped, with the reason.

    Args:
        client, peer: ``HOST:PORT`` at which it listens for clients, and for other servers.
        folder: for its data.
    """
    pytest.importorskip("etcd", reason="needs the package python-etcd")
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("needs etcd (Debian: etcd-server)")
    helped = subprocess.run([program, "--help"], capture_output=True, text=True)
    if "enable-v2" not in helped.stdout + helped.stderr:
        pytest.skip("this etcd has no interface v2, the only one that torch speaks; 3.4 and 3.5 have it")
    return [
        *(program, "--enable-v2", "--data-dir", str(folder / "etcd"), "--log-level", "error"),
        *("--listen-client-urls", f"http://{client}", "--advertise-client-urls", f"http://{client}"),
        *("--listen-peer-urls", f"http://{peer}"),
    ]
