"""The matrix: the table of a triage as data and as Markdown."""
