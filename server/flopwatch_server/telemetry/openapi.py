"""The description of POST /ingest for the OpenAPI document, from the wire's own classes.

It is no route of FastAPI's, which therefore can't describe it.
"""

from typing import Any

import msgspec

from flopwatch import wire

_REF = "#/components/schemas/{name}"
_REFUSALS = {
    "400": "The body is broken: not gzip, or cut off.",
    "401": "The token is unknown or revoked.",
    "403": "The token is another node's, or no node token.",
    "413": "The body is too large, as sent or unpacked: send less at a time.",
    "415": "Another content type or encoding than those offered.",
    "422": "A field is wrong: `detail` names it. The same batch would be refused again.",
    "503": "The batch could not be made durable: send it again after `Retry-After`.",
}


def describe_ingest(document: dict[str, Any]) -> None:
    """Add the path and the schemas of a batch to an OpenAPI document."""
    (batch,), schemas = msgspec.json.schema_components([wire.Batch], ref_template=_REF)
    document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
    document["paths"]["/api/v1/ingest"] = {
        "post": {
            "summary": "Take a batch of an agent",
            "description": "Answers once the batch is durable. Sent again, nothing is counted "
            "twice. `application/json` carries the rows in `samples.values`; "
            f"`{wire.BATCH_TYPE}` is the same header, a line feed, and the rows as little-endian "
            "float32, NaN where nothing is known. Either may be gzip. Times of samples are "
            "multiples of 10 s.",
            "security": [{"token": []}],
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {"schema": batch},
                    wire.BATCH_TYPE: {"schema": {"type": "string", "format": "binary"}},
                },
            },
            "responses": {
                "200": {
                    "description": "All of it is durable; refused samples are recorded as gaps.",
                    "content": {"application/json": {"schema": _ANSWER}},
                },
                **{code: {"description": text} for code, text in _REFUSALS.items()},
            },
        }
    }


_ANSWER = {
    "type": "object",
    "required": ["accepted", "duplicates", "refused", "server_time"],
    "properties": {
        "accepted": {"type": "integer"},
        "duplicates": {"type": "integer"},
        "refused": {"type": "integer"},
        "server_time": {"type": "number"},
    },
}
