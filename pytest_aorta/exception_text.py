"""An exception as text, whatever it does when it is looked at."""

from __future__ import annotations

import traceback


def describe_exception(error: BaseException) -> dict[str, str]:
    """``type``, ``message`` and ``traceback``; no local variables, for those may hold secrets."""
    try:
        message = str(error)
    except BaseException as inner:
        message = f"<{type(error).__name__}.__str__ raised {type(inner).__name__}>"
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:
        text = "".join(traceback.format_tb(error.__traceback__))
    return {"type": type(error).__qualname__, "message": message, "traceback": text}
