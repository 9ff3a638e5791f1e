"""Whether a workload may be among the files that were given as arguments, by their texts.

In most sessions, this is all that is done about them: there may be hundreds of files, and none with a workload.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def may_be_given(config: pytest.Config) -> bool:
    """Whether to look closer at the arguments."""
    here = config.invocation_params.dir
    if config.option.pyargs or (here != config.rootpath and any(argument.endswith("]") for argument in config.args)):
        return True  # they may have to be found elsewhere
    files = {argument.partition("::")[0] for argument in config.args}
    return any(_may_have_workloads(os.path.join(here, file)) for file in files if file.endswith(".py"))


def _may_have_workloads(file: str) -> bool:
    try:
        with open(file, "rb", buffering=0) as opened:
            return may_have_workloads(opened.read())
    except (OSError, ValueError):
        return False


def may_have_workloads(text: bytes) -> bool:
    """Whether it is worth while to parse a Python file with this text: a workload has a base, or both methods."""
    if b"Workload" in text:
        return True
    # Few texts have both words, and so the expressions need not be compiled.
    return b"setup" in text and b"run" in text and all(re.search(method, text) for method in _METHODS)


_METHODS = (rb"def\s+setup\b", rb"def\s+run\b")
