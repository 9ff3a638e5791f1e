"""Prints the JSON Schema of ``matrix.json``."""

from pytest_aorta.triage.matrix.document import schema_text

print(schema_text(), end="")
