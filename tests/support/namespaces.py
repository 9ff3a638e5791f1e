"""Commands that see other files below /etc, in a mount namespace of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest


def _can_use_namespaces() -> bool:
    if os.getuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


needs_namespaces = pytest.mark.skipif(not _can_use_namespaces(), reason="needs a mount namespace of its own (root)")


def in_namespace(folder: Path, files: Mapping[str, str], *command: str) -> list[str]:
    for name, text in files.items():
        (folder / name).write_text(text)
    binds = " && ".join(f"mount --bind {folder}/{name} /etc/{name}" for name in files)
    return ["unshare", "-m", "sh", "-c", f'{binds} && exec "$@"', "sh", *command]
