"""The files that a script imports are those that Python loads when it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pytest_aorta.trials.command_line import imported_files, search_path

FILES = {
    "train.py": "import model, os\nfrom package import part, sub as s\nfrom package.sub.deep import x\nif 0: import z",
    "model.py": "import train_data as d\ntry:\n    import missing\nexcept ImportError:\n    import fallback",
    "train_data.py": "def f():\n    import lazy",
    "fallback.py": "import model",
    "lazy.py": "",
    "z.py": "",
    "unrelated.py": "",
    "package/__init__.py": "",
    "package/part.py": "from . import other\nfrom .sub import deep",
    "package/other.py": "",
    "package/sub/__init__.py": "from ..other import __doc__",
    "package/sub/deep.py": "x = 1",
    "broken.py": "import model\n(",
}


def write(folder: Path) -> Path:
    for name, source in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    return folder / "train.py"


def test_all_that_are_loaded_are_found_and_those_that_may_be(tmp_path: Path) -> None:
    script = write(tmp_path)
    report = "for module in list(sys.modules.values()): print(getattr(module, '__file__', None))"
    runner = f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_path(sys.argv[1])\n{report}"
    ran = subprocess.run([sys.executable, "-S", "-c", runner, script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    loaded = {line for line in ran.stdout.splitlines() if line.startswith(str(tmp_path))}
    found = set(imported_files(str(script), search_path(str(script), is_module=False)))
    assert loaded > {str(tmp_path / "model.py"), str(tmp_path / "package/other.py")}
    assert found == loaded | {str(tmp_path / "lazy.py")}


def test_what_is_installed_or_broken_is_left_alone(tmp_path: Path) -> None:
    script = write(tmp_path)
    assert imported_files(str(script), [str(tmp_path / "lib" / "site-packages")]) == []
    assert imported_files(str(tmp_path / "broken.py"), [str(tmp_path)]) == []
    assert imported_files(str(tmp_path / "gone.py"), [str(tmp_path)]) == []
