"""The Python that runs the trial."""

from __future__ import annotations

import platform
import sys
import sysconfig
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts, Guard


def interpreter(guard: Guard) -> Facts:
    """Facts about this interpreter."""
    return guard.facts(
        "python",
        {
            "version": platform.python_version,
            "build": lambda: sys.version,
            "implementation": lambda: sys.implementation.name,
            "executable": lambda: sys.executable or None,
            "prefix": lambda: sys.prefix,
            "base_prefix": lambda: sys.base_prefix,
            # -O and PYTHONOPTIMIZE remove the assert statements that many reproducers rely on.
            "optimize": lambda: sys.flags.optimize,
            "free_threaded": lambda: bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        },
    )
