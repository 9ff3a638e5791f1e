"""Virtual environments with other versions than those of this run, from a package index."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def environ_without_this_run() -> dict[str, str]:
    ours = ("PYTEST_", "AORTA_", "COV_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        inherited.pop(name, None)
    return inherited


def run_module(
    python: Path, *words: str, cwd: Path | None = None, timeout: float = 900, **variables: str
) -> subprocess.CompletedProcess[str]:
    """``python -m`` with these words; the timeout is for the case that something hangs."""
    environ = {**environ_without_this_run(), **variables}
    command = [str(python), "-m", *words]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=timeout, check=False)


def pip(python: Path, *arguments: str, cwd: Path | None = None) -> None:
    options = ("--quiet", "--disable-pip-version-check", "--retries", "1")
    done = run_module(python, "pip", *arguments, *options, cwd=cwd, timeout=3600)
    if "No matching distribution found" in done.stderr or "ConnectionError" in done.stderr:
        pytest.skip(f"the package index does not answer: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr


def copy_of_this_project(folder: Path) -> Path:
    for name in ("pytest_aorta", "workloads"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def environment_beside_this_run(folder: Path, *packages: str) -> Path:
    """An environment with all that this run has, torch with it, and further packages; its Python.

    What is installed here is found there by its paths, and neither copied nor changed.
    """
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    (installed,) = folder.glob("lib/python*/site-packages")
    # Again, for what these paths' own files name.
    lines = [f"import site; site.addsitedir({path!r})" for path in _installed_here()]
    (installed / "this_run.pth").write_text("\n".join([str(ROOT), *lines, ""]))
    pip(python, "install", "--no-compile", "-c", str(ROOT / "constraints.txt"), *packages)
    return python


def _installed_here() -> list[str]:
    return [path for path in sys.path if path.endswith("site-packages")]


def kept_environment(*packages: str) -> Path:
    """As ``environment_beside_this_run``, made once for all runs of this interpreter."""
    constraints = (ROOT / "constraints.txt").read_text()
    key = hashlib.sha256("\n".join([str(ROOT), *_installed_here(), constraints, *packages]).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytest-aorta-tests"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / key
    with (cache / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            python = environment_beside_this_run(folder, *packages)
            # What pip writes where torch is installed here, too.
            torchrun = folder / "bin" / "torchrun"
            torchrun.write_text(f"#!{python}\nimport sys\nfrom torch.distributed.run import main\nsys.exit(main())\n")
            torchrun.chmod(0o755)
            (folder / "complete").touch()
    return folder / "bin" / "python"
