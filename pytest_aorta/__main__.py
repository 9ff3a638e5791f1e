"""``python -m pytest_aorta`` is ``pytest-aorta``."""

from __future__ import annotations

from pytest_aorta.cli.main import main

if __name__ == "__main__":
    main(prog_name="python -m pytest_aorta")
