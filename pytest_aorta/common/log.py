"""The log of decisions: loggers below ``pytest_aorta``, and a file of its own for them.

pytest's ``--log-level=DEBUG`` and ``--log-file`` show them as those of any library. ``PYTEST_AORTA_LOG=debug FILE``
writes them into a file, also those of commands and of xdist's workers, which append to the same one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from pytest_aorta.common import RequestError

VARIABLE = "PYTEST_AORTA_LOG"

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}

_FORMAT = "%(asctime)s %(process)d %(threadName)s %(levelname)s %(name)s: %(message)s"


def follow(environ: Mapping[str, str] = os.environ) -> None:
    """Write the log to the file that the variable names, once per process.

    Raises:
        RequestError: the variable has another form, or the file cannot be written.
    """
    given = environ.get(VARIABLE, "").strip()
    logger = logging.getLogger("pytest_aorta")
    if not given or any(isinstance(each, _LogFile) for each in logger.handlers):
        return
    level, _, file = given.partition(" ")
    if level.lower() not in _LEVELS or not file.strip():
        raise RequestError(f"{VARIABLE}={given!r}: expected LEVEL FILE, such as debug aorta.log; {', '.join(_LEVELS)}")
    try:
        handler = _LogFile(os.path.abspath(file.strip()), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RequestError(f"{VARIABLE}={given!r}: {error.strerror}") from None
    handler.setFormatter(logging.Formatter(_FORMAT))
    handler.setLevel(_LEVELS[level.lower()])
    logger.addHandler(handler)
    logger.setLevel(handler.level)


class _LogFile(logging.FileHandler):
    """Appends."""
