"""The secret of a run on several nodes: only its nodes can write what they read in their store.

torch's store has no password. Its keys can be listed, so a secret name is none; a value is accepted only with a keyed
digest (HMAC, RFC 2104) of itself and its key. Without torch: pytest itself imports this.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from pytest_aorta.launch.launch_mode import LaunchModeError

#: For nodes that do not see the same results directory.
VARIABLE = "AORTA_NODES_SECRET"

#: In the results directory, made by the first node that comes, readable only by its user.
FILE = ".nodes_secret"

#: Seconds within which a node that has created the file has written it.
_PATIENCE = 10.0

_DIGITS = 64


class ForgedValue(Exception):
    """A value that no node of this run has written."""


def secret_of(results: Path, environ: Mapping[str, str] = os.environ) -> str:
    """The secret of the nodes whose results are in a directory: the variable's, else that of the directory's file.

    Raises:
        LaunchModeError: the file cannot be made, or is not what it should be.
    """
    if given := environ.get(VARIABLE):
        return given
    path = results / FILE
    try:
        results.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(_DIGITS // 2))
    except FileExistsError:
        pass
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from None
    return _read(path)


def _read(path: Path) -> str:
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            text = path.read_text(errors="replace")
        except OSError as error:
            raise _unusable(path, error.strerror or str(error)) from None
        if re.fullmatch(rf"[0-9a-f]{{{_DIGITS}}}", text):
            return text
        if time.monotonic() > give_up:
            raise _unusable(path, f"it does not hold {_DIGITS} hexadecimal digits")
        time.sleep(0.05)


def _unusable(path: Path, why: str) -> LaunchModeError:
    return LaunchModeError(
        f"the nodes need the secret in {path}: {why}; "
        f"remove the file, or set {VARIABLE} to the same value on every node"
    )


class Seal:
    """What is derived from a secret, which it does not show.

    Attributes:
        prefix: of the keys of the run.
        hello: a key that the store of the run has.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self.prefix = self._digest(b"prefix")[:32]
        self.hello = f"{self.prefix}/hello"

    def close(self, key: str, value: bytes) -> bytes:
        """The value, with a digest of it and its key. The same value always becomes the same."""
        return self._digest(key.encode() + b"\0" + value).encode() + value

    def open(self, key: str, sealed: bytes) -> bytes:
        """The value.

        Raises:
            ForgedValue: it was not closed with this secret, or not for this key.
        """
        digest, value = sealed[:_DIGITS], sealed[_DIGITS:]
        if not hmac.compare_digest(digest, self._digest(key.encode() + b"\0" + value).encode()):
            raise ForgedValue("the store at which the nodes meet has a value that no node of this run has written")
        return value

    def _digest(self, message: bytes) -> str:
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()
