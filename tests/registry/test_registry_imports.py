"""What the registry costs those who do not use it, and those who do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_aorta

ROOT = Path(pytest_aorta.__file__).parents[1]

HEAVY = ("torch", "pydantic", "pytest", "_pytest", "numpy")


@pytest.mark.parametrize(
    "code",
    [
        "import pytest_aorta.registry",
        "import pytest_aorta.registry as r; r.Registry.load().problems(); r.get_mitigation('xnack')",
        "import pathlib, pytest_aorta.registry as r; r.get_environment('x', [pathlib.Path('lab.json')])",
    ],
    ids=["import", "use", "sidecar"],
)
def test_the_registry_imports_nothing_heavy(tmp_path: Path, code: str) -> None:
    (tmp_path / "lab.json").write_text('{"version": 1, "environments": {"x": {"venv": "v"}}}')

    # Without site-packages: a plugin installed on this machine is free to import what it likes.
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert not set(HEAVY) & set(json.loads(done.stdout))
