"""The digest of a container image, where an engine answers."""

from __future__ import annotations

import functools
import subprocess

#: Seconds that an engine may take; a trial never waits longer for a label.
_TIMEOUT = 5.0


@functools.cache
def image_digest(image: str, engine: str = "docker") -> str | None:
    """The id (``sha256:...``) of an image that is present on this host, or ``None``; of docker and podman only."""
    if engine not in ("docker", "podman"):
        return None
    try:
        answer = subprocess.run(
            [engine, "image", "inspect", "--format", "{{.Id}}", image],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = answer.stdout.strip()
    return None if not found else found if ":" in found else f"sha256:{found}"
