"""How long this host takes to look its own name up, as every rank does that joins a process group."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pytest_aorta.probe.tool import ToolTimedOut, ask

#: Seconds that a look-up may take; a resolver gives up on a lost packet after 5.
_PATIENCE = 2.0


def own_name_lookup_ms(hosts: Path = Path("/etc/hosts")) -> float:
    """Milliseconds of one look-up; 0 where /etc/hosts has the name, so that nothing else is asked.

    Raises:
        ToolTimedOut: it takes longer than 2 s.
        OSError: it cannot be measured.
    """
    name = os.uname().nodename
    lines = (line.partition("#")[0].split() for line in hosts.read_text(errors="replace").splitlines())
    if any(name in line[1:] for line in lines):
        return 0.0
    start = time.monotonic()
    try:
        ask(["getent", "ahosts", name], _PATIENCE)
    except ToolTimedOut:
        raise ToolTimedOut(f"the look-up of {name} takes longer than {_PATIENCE:g} s") from None
    return round((time.monotonic() - start) * 1000, 1)
