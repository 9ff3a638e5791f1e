"""Cores and devices of a host, and who has them."""
