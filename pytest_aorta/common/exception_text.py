"""An exception as text, whatever it does when it is looked at."""

from __future__ import annotations

import traceback

#: Characters of a message, and of a traceback, that are kept.
_LIMIT = 2**15


def describe_exception(error: BaseException) -> dict[str, str]:
    """``type``, ``message`` and ``traceback``; no local variables, for those may hold secrets."""
    try:
        message = str.__str__(str(error))  # which may be of a subclass, with methods of its own
    except BaseException as inner:
        message = f"<{type(error).__name__}.__str__ raised {type(inner).__name__}>"
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:
        text = "".join(traceback.format_tb(error.__traceback__))
    return {"type": type(error).__qualname__, "message": _bounded(message), "traceback": _bounded(text)}


def _bounded(text: str) -> str:
    """Head and tail of a text that is too long for a report."""
    if len(text) <= _LIMIT:
        return text
    half = _LIMIT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"
