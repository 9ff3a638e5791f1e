"""How a host is named on the command line: execnet's gateway specifications, as in xdist's ``--tx``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import execnet

#: What says how the host is reached; a specification has exactly one of them.
_KINDS = ("popen", "ssh")

#: What may be added. execnet's ``execmodel``, ``via`` and ``installvia`` would not run the service in a main thread.
_EXTRAS = ("python", "chdir", "nice", "id", "ssh_config", "dont_write_bytecode")

_VALID = (
    "valid are popen, ssh=[USER@]HOST, N*SPEC for N equal ones, "
    f"and after // any of {', '.join(f'{name}=' for name in _EXTRAS[:-1])}, {_EXTRAS[-1]}, env:NAME="
)


def without_values(host: str) -> str:
    """A specification in which ``env:NAME=VALUE`` is ``env:NAME=...``: it may be a secret."""
    parts = [part.partition("=") for part in host.split("//")]
    # Also where env: is misspelt; no other key has a colon.
    return "//".join(
        f"{key}=..." if value and re.search(":|env", key, re.IGNORECASE) else key + equals + value
        for key, equals, value in parts
    )


def parse_spec(text: str) -> execnet.XSpec:
    """One specification without ``N*``. Raises ``ValueError`` that names what is wrong and what is valid."""
    import execnet

    if problem := _problem(text):
        raise ValueError(f"{without_values(text)!r} is not a host: {problem}; {_VALID}")
    return execnet.XSpec(text)


def expand_specs(texts: Sequence[str]) -> list[str]:
    """Specifications with ``N*`` multiplied out: ``2*popen`` is ``popen``, ``popen``.

    Raises:
        ValueError: one of them is not valid or stands for more than 9999 hosts, or two have the same ``id``.
    """
    specs: list[str] = []
    for text in texts:
        count, star, rest = text.partition("*")
        if not star or not count.isdecimal():
            specs.append(text)
        elif len(count) > 4 or int(count) == 0:  # of more digits than 4,300, Python makes no number
            raise ValueError(f"{count} hosts are not valid; expected 1 to 9999, as in 2*popen")
        else:
            specs.extend([rest] * int(count))
    ids: dict[str, str] = {}
    for text in specs:
        name = parse_spec(text).id
        if name is not None and name in ids:
            shown = f"{without_values(ids[name])!r} and {without_values(text)!r}"
            raise ValueError(f"{shown} have the same id; give every host its own, or none")
        if name is not None:
            ids[name] = text
    return specs


def _problem(text: str) -> str | None:
    pairs = [part.partition("=") for part in text.split("//")]
    keys = [key for key, _, _ in pairs]
    kinds = [key for key in keys if key in _KINDS]
    if len(kinds) != 1:
        return "it does not say how to reach it" if not kinds else f"{' and '.join(kinds)} exclude each other"
    for key, equals, value in pairs:
        if key not in _KINDS + _EXTRAS and not (key.startswith("env:") and len(key) > 4):
            return f"{key!r} is unknown or of no use here"
        if key == "env:PYTHONPATH":
            return f"{key!r} comes after the interpreter has looked, so that its children would run other code than it"
        if key not in ("popen", "dont_write_bytecode") and not value and not (key.startswith("env:") and equals):
            return f"{key!r} needs a value"
        if keys.count(key) > 1:
            return f"{key!r} is there twice"
    return None
