"""Names that are safe in node ids and paths, different for different originals."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

_UNSAFE = re.compile(r"[^A-Za-z0-9_.+=-]+")

#: Longest name; file systems allow 255 bytes for a component, and suffixes are added.
_LIMIT = 120

#: Characters of the digest that keeps two changed names apart.
_DIGEST = 8


@lru_cache(maxsize=4096)  # those of a plan are asked for again and again
def identifier(name: str) -> str:
    """``name`` itself where it is short ASCII without separators, else a readable form of it with a digest.

    The result has no ``/``, ``:``, ``[``, ``]``, space or control character, is neither empty nor ``.`` nor ``..``,
    does not start with a dot or a dash, and is different for different names.
    """
    safe = _UNSAFE.sub("_", name)
    safe = re.sub(r"^[.-]", "_", safe)[:_LIMIT]
    # "~" is not a safe character, so a changed name never equals one that was safe.
    if safe == name != "":
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{safe}~{digest}"
