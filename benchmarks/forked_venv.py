"""A virtual environment with pytest-forked, which cannot share one with pytest-aorta: it needs an older pytest."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

REQUIREMENTS = ("pytest<9", "pytest-forked")


class VenvUnavailable(Exception):
    """It cannot be made here."""


def forked_python(cache: Path) -> Path:
    """The interpreter of a venv below ``cache``, made when it is not there, that sees this interpreter's torch.

    Raises:
        VenvUnavailable: the requirements cannot be installed.
    """
    folder = cache / f"forked-{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    complete = folder / "complete"  # written last: half a venv is made again
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    wanted = "\n".join([sys.executable, torch.origin, *REQUIREMENTS])
    if complete.exists() and complete.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True, symlinks=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS]
    installed = subprocess.run(command, capture_output=True, text=True)
    if installed.returncode != 0:
        raise VenvUnavailable(installed.stderr.strip())
    # Entries of a .pth file come after the venv's own packages, so only what is missing there is found here.
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (site / "torch_of_the_caller.pth").write_text(f"{Path(torch.origin).parents[1]}\n")
    complete.write_text(wanted)
    return python
