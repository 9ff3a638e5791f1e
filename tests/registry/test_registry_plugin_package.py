"""tests/plugin_package through its own metadata, without an installation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.fake_distributions import use_site, write_distribution

from pytest_aorta.registry import Registry, RegistryError

PACKAGE = Path(__file__).parents[1] / "plugin_package"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Registry:
    """The package as ``pip install --editable`` would leave it: its source on the path, its metadata beside it."""
    tomllib = pytest.importorskip("tomllib", reason="reads pyproject.toml, which the standard library can from 3.11 on")
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    write_distribution(tmp_path, project["name"], project["entry-points"], version=project["version"])
    use_site(monkeypatch, PACKAGE)
    use_site(monkeypatch, tmp_path)
    return Registry.load()


def test_the_package_needs_no_installation_to_be_found(registry: Registry) -> None:
    assert registry.workload("plugin_echo").target == "aorta_test_plugin.workloads:Echo"
    assert registry.workload("plugin_legacy").source_package == "aorta-test-plugin"
    assert "aorta_test_plugin" not in sys.modules

    assert registry.mitigation("plugin_mode_fast").env == {"PLUGIN_MODE": "fast"}
    assert registry.environment("plugin_env").env == {"PLUGIN_ENV": "1"}


def test_the_broken_entry_of_the_package_hurts_only_those_who_ask_for_it(registry: Registry) -> None:
    assert registry.mitigation("plugin_mode_fast").env
    with pytest.raises(RegistryError, match=r"'plugin_broken'.*'aorta-test-plugin'.*ImportError: libplugin_broken"):
        registry.mitigation("plugin_broken")
    assert len([line for line in registry.problems() if "plugin_broken" in line]) == 1


def test_the_workloads_of_the_package_run_on_their_own(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from aorta_test_plugin.workloads import Echo, Legacy

    monkeypatch.setenv("PLUGIN_MODE", "slow")
    echo = Echo({"size": 3})
    echo.setup()
    assert echo.run().passed
    assert echo.run().metrics == {"config": {"size": 3}, "PLUGIN_MODE": "slow"}

    legacy = Legacy({"steps": 2, "fail_at": 1, "cleanup_file": str(tmp_path / "done")})
    legacy.setup()
    result = legacy.run()
    legacy.cleanup()
    assert not result.passed
    assert result.failure_details == [{"iteration": 1}]
    assert (tmp_path / "done").read_text() == "2"
