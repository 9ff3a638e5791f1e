"""What is wrong with a request, as opposed to what happens to its trials."""

from __future__ import annotations


class RequestError(ValueError):
    """A request that cannot be carried out, refused before its first trial; the message says what would be valid."""
