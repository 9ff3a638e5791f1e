"""The payload of the entry point ``plugin_env``."""

from __future__ import annotations

PLUGIN_ENV = {"env": {"PLUGIN_ENV": "1"}}
