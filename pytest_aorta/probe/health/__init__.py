"""Health of this host and its devices: errors, throttling, temperature, clocks; see ``docs/reference/probe.md``."""
