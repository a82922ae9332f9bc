"""The spec's JSON Schema, for editors and for tools that write specs."""

import json

from harness.spec import Spec


def schema_text() -> str:
    """What configs/schema.json holds."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Spec.model_json_schema()
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"
