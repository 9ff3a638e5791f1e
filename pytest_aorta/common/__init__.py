"""Small helpers that every room may import, in any process: they need nothing but the standard library."""
