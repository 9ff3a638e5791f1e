"""What a trial finds around its workload and its options, as far as that decides between two results."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_aorta.probe.variables import settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_aorta.probe.guard import Facts
    from pytest_aorta.probe.static import StaticEnv


def variables_now() -> dict[str, str]:
    """The variables that are settings, before a workload that is imported may set some itself."""
    return settings(os.environ)


def surroundings(static: StaticEnv, variables: Mapping[str, str]) -> Facts:
    """``python`` (its version and build), ``interpreter``, ``torch``, ``packages``, ``cpus``, ``variables``.

    ``interpreter`` is a path; ``torch`` a version, followed by the commit that it was built of if it is imported;
    ``packages`` a digest as in ``probe.packages``; ``cpus`` the number that this process may run on.
    """
    python, torch = static.sections.get("python", {}), static.sections.get("torch", {})
    return {
        "python": python.get("build"),
        "interpreter": python.get("executable"),
        "torch": " ".join(filter(None, (torch.get("version"), torch.get("git_version")))) or None,
        "packages": static.sections.get("packages", {}).get("digest"),
        "cpus": len(os.sched_getaffinity(0)),
        "variables": dict(variables),
    }
