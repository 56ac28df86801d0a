"""The published JSON schemas: of what this program writes for other programs, and of what people write for it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from evalgate.gates.evidence_statement import NOT_TOLD, PAYLOAD_TYPE, PREDICATE, STATEMENT
from evalgate.gates.policy import Policy
from evalgate.gates.profile import Profile
from evalgate.gates.verdict import Verdict
from evalgate.records import Manifest

DIALECT = "https://json-schema.org/draft/2020-12/schema"

WRITTEN: dict[str, type[BaseModel]] = {"verdict": Verdict, "manifest": Manifest}
READ: dict[str, type[BaseModel]] = {"policy": Policy, "profile": Profile}


def schema(name: str) -> dict[str, Any]:
    """The schema called ``name``: a key of ``WRITTEN`` or ``READ``, or ``statement``.  Raises KeyError."""
    if name == "statement":
        return _titled(name, _statement())
    if name in WRITTEN:
        return _titled(name, WRITTEN[name].model_json_schema(mode="serialization"))
    return _titled(name, READ[name].model_json_schema(by_alias=True))


def _titled(name: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": DIALECT, "$id": f"urn:evalgate:schema:{name}:v1", **body}


def _statement() -> dict[str, Any]:
    """What the envelope of evidence holds: an in-toto Statement whose predicate is a verdict and the run it is on."""
    verdict, run = schema("verdict"), schema("manifest")
    definitions = {**verdict.pop("$defs", {}), **run.pop("$defs", {})}
    digest = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    told = {"counters": {"type": "object"}, "trials": {"type": "integer"}, "trials_sha256": digest}
    subject = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "digest": {"type": "object", "properties": {"sha256": digest}}},
        "required": ["name", "digest"],
    }
    return {
        "title": f"in-toto Statement ({PAYLOAD_TYPE})",
        "type": "object",
        "properties": {
            "_type": {"const": STATEMENT},
            "subject": {"type": "array", "items": subject, "minItems": 1},
            "predicateType": {"const": PREDICATE},
            "predicate": {
                "type": "object",
                "properties": {
                    "signed": {"type": "string", "format": "date-time"},
                    "verdict": _without(verdict, {"flips"}),
                    "run": _with(_without(run, NOT_TOLD), told),
                    "ledger": {"type": ["object", "null"]},
                },
                "required": ["signed", "verdict", "run", "ledger"],
                "additionalProperties": False,
            },
        },
        "required": ["_type", "subject", "predicateType", "predicate"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _without(body: dict[str, Any], fields: set[str]) -> dict[str, Any]:
    kept = {name: value for name, value in body.items() if name not in ("$schema", "$id")}
    properties = {name: value for name, value in body["properties"].items() if name not in fields}
    return kept | {"properties": properties, "required": [name for name in body["required"] if name in properties]}


def _with(body: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    return body | {"properties": body["properties"] | fields, "required": [*body["required"], *fields]}
