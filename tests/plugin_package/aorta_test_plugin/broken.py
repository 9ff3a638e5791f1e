"""A module whose requirement is not installed: only those who ask for ``plugin_broken`` may notice."""

from __future__ import annotations

raise ImportError("libplugin_broken.so: cannot open shared object file")
