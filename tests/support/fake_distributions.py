"""Installed packages without an installation: what importlib.metadata reads is a folder with two small files."""

from __future__ import annotations

import sys
import zipfile
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


def write_wheel(folder: Path, name: str, version: str, code: str) -> None:
    """A wheel of one module in a folder that pip and uv look for packages in."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", code)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        files = (f"{name}.py", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD")
        wheel.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in files))


def use_index(monkeypatch: pytest.MonkeyPatch, folder: Path, cache: Path) -> None:
    """Have pip and uv find packages in ``folder`` alone, and keep environments in ``cache``."""
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
