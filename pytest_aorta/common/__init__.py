"""Small helpers that every room may import, in any process: they need nothing but the standard library."""


class RequestError(ValueError):
    """A request that cannot be carried out, refused before its first trial; the message says what would be valid."""
