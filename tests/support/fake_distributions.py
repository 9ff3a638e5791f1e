"""Installed packages without an installation: what importlib.metadata reads is a folder with two small files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

EntryPoints = dict[str, dict[str, str]]


def write_distribution(
    site: Path, name: str, entry_points: EntryPoints, modules: Mapping[str, str] | None = None, version: str = "1.0"
) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, entries in entry_points.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for module, source in (modules or {}).items():
        (site / f"{module}.py").write_text(source)


def use_site(monkeypatch: pytest.MonkeyPatch, site: Path) -> None:
    monkeypatch.syspath_prepend(site)
    for path in site.rglob("*.py"):
        parts = path.relative_to(site).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        # Recorded as absent, whatever the test imports; delitem alone records nothing for a key that is not there.
        monkeypatch.setitem(sys.modules, module, sys)
        monkeypatch.delitem(sys.modules, module)


def install(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    entry_points: EntryPoints,
    modules: Mapping[str, str] | None = None,
) -> None:
    """A distribution in a folder of its own on ``sys.path``."""
    site = tmp_path / f"site-{name}"
    write_distribution(site, name, entry_points, modules)
    use_site(monkeypatch, site)
