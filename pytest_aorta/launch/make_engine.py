"""The engine of a pytest run, from what the user has selected."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_aorta.launch.engine import TrialEngine
    from pytest_aorta.plan import Plan, Selection


def make_engine(selection: Selection, plans: Iterable[Plan]) -> TrialEngine:
    """An engine with the slots, devices and hosts of a selection."""
    from pytest_aorta.runtime.engine.sigint import SIGINT_GUARD

    with SIGINT_GUARD.deferred():
        from pytest_aorta.launch.engine import TrialEngine
        from pytest_aorta.launch.nodes.addressing import has_several

    elastic, resources = selection.execution.elastic, selection.resources
    return TrialEngine(
        slots=resources.slots,
        devices=resources.devices,
        hosts=resources.hosts,
        grace=selection.limits.grace,
        elastic=elastic if has_several(elastic) else None,
        identity=code_identity_of(plans) if resources.hosts else None,
    )


def code_identity_of(plans: Iterable[Plan]) -> Mapping[str, str]:
    """Digests of the source files that a trial on another host would run, by their names."""
    from pytest_aorta.runtime.hosts.code_digest import code_identity, package_files

    files: dict[str, Path] = package_files("pytest_aorta")
    for target in {spec.workload.target for plan in plans for spec in plan.trials}:
        where = target.rpartition(":")[0]
        if where.endswith(".py"):
            files[str(Path(where).absolute())] = Path(where).absolute()
            continue
        top = where.partition(".")[0]
        found = importlib.util.find_spec(top)
        if found is not None and found.submodule_search_locations:
            files |= package_files(top)
        elif found is not None and found.origin:
            files[str(found.origin)] = Path(found.origin)
    return code_identity(files)
