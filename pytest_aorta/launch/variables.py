"""Which variables a launcher has set for its ranks, beyond what the trial was given."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

#: What launchers set: the ranks' places, the rendezvous, and what torchrun adds silently. Nothing else is told, as it
#: may be a secret.
_LAUNCHERS = re.compile(
    r"RANK|(LOCAL|GROUP|ROLE)_RANK|((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+|PET_\w+"
    r"|OMP_NUM_THREADS|TORCH_NCCL_\w+|TORCH_\w+|NCCL_\w+|CUDA_\w+|HIP_\w+"
)


def launcher_variables(base: int | None, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of this process that ``base``, the process that the launcher was started from, did not have so.

    Empty when there is no such process, or nobody may look at it.
    """
    if base is None:
        return {}
    try:
        content = Path(f"/proc/{base}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in content.split(b"\0"))
    before = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return {
        name: value
        for name, value in sorted(environ.items())
        if _LAUNCHERS.fullmatch(name) and before.get(name) != value
    }
