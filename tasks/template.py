"""The suite to start from: commented YAML that is valid as it stands."""

from __future__ import annotations

import json
from importlib.resources import files
from string import Template

from evalgate.tasks.suite import Suite
from evalgate.versioned import parse, parse_yaml


def template(name: str) -> str:
    """Return commented YAML of a new suite.

    Raises InvalidDocumentError: ``name`` is not of a form that a suite may have.
    """
    raw = files("evalgate.tasks").joinpath("templates/suite.yaml").read_text(encoding="utf-8")
    text = Template(raw).substitute(name=json.dumps(name))
    parse(Suite, parse_yaml(text, "new suite"), "new suite")
    return text
