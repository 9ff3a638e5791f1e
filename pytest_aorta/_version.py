"""Version of this distribution: the one place that has it; pyproject.toml reads it from here.

A process of a trial compares it with the session's at its start. It is that of the code which runs: metadata of an
installation may be older, or missing.
"""

__version__ = "0.1.0"
