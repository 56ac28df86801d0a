"""The error tree is the one drawn at the top of its module."""

from __future__ import annotations

import re

import pytest

from evalgate import errors
from evalgate.errors import EvalgateError, ExitCode, nearest


def drawn() -> dict[str, tuple[str | None, int]]:
    """Class name -> (parent, exit code) as the module's docstring draws them; the root has neither."""
    tree: dict[str, tuple[str | None, int]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^([│├└─ ]*)(\w+Error)(?:\s+(\d+))?", line)
        if match is None:
            continue
        indent, name, code = len(match[1]), match[2], int(match[3] or ExitCode.ERROR)
        above = [(depth, parent) for depth, parent in above if depth < indent]
        tree[name] = (above[-1][1] if above else None, code)
        above.append((indent, name))
    return tree


def test_tree_is_the_one_drawn() -> None:
    """Every error class is drawn under its parent with its exit code, and nothing else is."""
    classes = {name: kind for name, kind in vars(errors).items() if name.endswith("Error")}
    actual = {
        name: (None if kind is EvalgateError else kind.__bases__[0].__name__, int(kind.exit_code))
        for name, kind in classes.items()
    }

    assert actual == drawn()
    assert all(issubclass(kind, EvalgateError) for kind in classes.values())


def test_exit_codes_are_the_published_ones() -> None:
    """Pipelines depend on these numbers."""
    assert {code.name: int(code) for code in ExitCode} == {
        "PASS": 0,
        "BLOCK": 1,
        "REFUSED": 2,
        "INCONCLUSIVE": 3,
        "ERROR": 4,
        "TAMPERED": 5,
        "INTERRUPTED": 130,
    }


def test_no_error_means_pass_or_block() -> None:
    """An error of ours is never mistaken for a verdict about the model."""
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, EvalgateError):
            assert kind.exit_code not in {ExitCode.PASS, ExitCode.BLOCK, ExitCode.INCONCLUSIVE}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("state-int9", "; did you mean state-int8, state-int4?"),
        ("zzz", "; known: full, state-int4, state-int8"),
    ],
)
def test_nearest_names_are_offered(name: str, expected: str) -> None:
    """A slip is answered by the names close to it, a stranger by all of them."""
    assert nearest(name, ["state-int8", "full", "state-int4"]) == expected


def test_nothing_known_is_said() -> None:
    """An empty library says so."""
    assert nearest("x", []) == "; known: none"
