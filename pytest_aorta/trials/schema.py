"""The JSON Schema of a trial file.

``python -m pytest_aorta.trials.schema > docs/trial_result.schema.json`` publishes it.
"""

from __future__ import annotations

import json

from pytest_aorta.trials.result import TrialResult


def schema_text() -> str:
    """The schema of what ``TrialResult.to_dict()`` gives, as indented JSON with sorted keys."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **TrialResult.model_json_schema(mode="serialization"),
    }
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
