"""What a task is configured with, where no type of one's own is wanted."""

from __future__ import annotations

from types import SimpleNamespace


class CallConfig(SimpleNamespace):
    """Named values: ``CallConfig(seed=1, threads=4)``, which a slot finds as ``args.config.seed``.

    Any object that can be pickled does as well.
    """
