"""`evalgate schema`: the published JSON schemas."""

from __future__ import annotations

from typing import Annotated

import typer

from evalgate.cli import console
from evalgate.errors import UnknownNameError, nearest

NAMES = ("manifest", "policy", "profile", "statement", "suite", "verdict")


def schema(
    name: Annotated[
        str, typer.Argument(help="manifest, policy, profile, statement, suite or verdict.", show_default=False)
    ],
    json: console.Json = False,
) -> None:
    """Print the JSON schema of a file that evalgate writes or reads."""
    del json  # it is JSON either way
    from evalgate.gates import schemas

    if name not in NAMES:
        raise UnknownNameError(f"there is no schema {name!r}{nearest(name, list(NAMES))}")
    if name == "suite":
        from evalgate.tasks.suite import Suite

        body = {"$schema": schemas.DIALECT, "$id": "urn:evalgate:schema:suite:v1", **Suite.model_json_schema()}
        console.emit(body)
        return
    console.emit(schemas.schema(name))
