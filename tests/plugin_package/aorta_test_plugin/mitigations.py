"""The payload of the entry point ``plugin_mode_fast``."""

from __future__ import annotations

MODE_FAST = {"PLUGIN_MODE": "fast"}
