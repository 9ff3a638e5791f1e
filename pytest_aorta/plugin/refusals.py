"""What is refused of a run as a whole: an error of the command line, with exit status 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

import pytest

from pytest_aorta.common.request_error import RequestError

P = ParamSpec("P")


def refuse(check: Callable[P, object], *arguments: P.args, **keywords: P.kwargs) -> None:
    """Make a check, and what it refuses an error of the command line.

    Raises:
        pytest.UsageError: in the words of the check.
    """
    try:
        check(*arguments, **keywords)
    except RequestError as error:
        raise pytest.UsageError(str(error)) from None
