"""The digest of a container image, where Docker answers."""

from __future__ import annotations

import functools
import subprocess

#: Seconds that Docker may take; a trial never waits longer for a label.
_TIMEOUT = 5.0


@functools.cache
def image_digest(image: str) -> str | None:
    """``sha256:...`` of an image that is present on this host, or ``None``."""
    try:
        answer = subprocess.run(
            ["docker", "inspect", "--type", "image", "--format", "{{.Id}}", image],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
