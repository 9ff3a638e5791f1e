"""Container engines for tests: a stand-in of this repository, and a real one where there is one."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import stand_in_engine
from support.stage import Stage


@functools.cache
def _namespaces() -> bool:
    try:
        return subprocess.run([*stand_in_engine.UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"]).returncode == 0
    except OSError:
        return False


def install_stand_in(stage: Stage) -> dict[str, str]:
    if not _namespaces():
        pytest.skip("the stand-in of a container engine needs unshare, and the right to make namespaces")
    script = Path(stand_in_engine.__file__)
    engine = stage.write_file("bin/docker", f'#!/bin/sh\nexec {sys.executable} -S {script} "$@"\n')
    engine.chmod(0o755)
    return {"PATH": f"{engine.parent}:{os.environ['PATH']}", "STAND_IN_FOLDER": str(engine.parent)}
