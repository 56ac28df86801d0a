"""Versioned documents: strict to read, found by name or file, immutable once released."""

from __future__ import annotations

import hashlib
import json
import math
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from evalgate.errors import InvalidDocumentError, TamperedError, UnknownNameError
from evalgate.versioned import Document, Library, canonical_digest, parse, read_lock, read_yaml


class Inner(BaseModel):
    """A section of a recipe."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    minutes: int
    heat: float = 1.0


class Recipe(Document):
    """A kind of document that only these tests know."""

    oven: Inner
    steps: tuple[Inner, ...] = ()


BODY = """\
schema_version: 1
name: bread
version: 1.0.0
oven: {minutes: 30}
"""


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """Three versions of bread, one of cake; bread 1.0.0 and 1.2.0 are released."""
    library = Library("recipe", tmp_path)
    for name, version in (("bread", "1.0.0"), ("bread", "1.2.0"), ("bread", "1.10.0"), ("cake", "1.0.0")):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / f"{version}.yaml").write_text(BODY.replace("bread", name).replace("1.0.0", version))
    locks = {version: library.load(Recipe, f"bread@{version}").digest for version in ("1.0.0", "1.2.0")}
    (tmp_path / "bread" / "lock.json").write_text(json.dumps(locks))
    return library


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str | bytes], Recipe]:
    """Write text as a file and read it as a recipe."""

    def read(text: str | bytes) -> Recipe:
        path = tmp_path / "recipe.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return parse(Recipe, read_yaml(path), str(path))

    return read


def test_name_means_newest(library: Library) -> None:
    """A bare name is its highest version by number, not by spelling."""
    assert library.load(Recipe, "bread").ref == "bread@1.10.0"
    assert library.versions("bread") == ["1.0.0", "1.2.0", "1.10.0"]


def test_version_and_file_are_found(library: Library) -> None:
    """``name@version`` and a path lead to the same document."""
    by_name = library.load(Recipe, "bread@1.2.0")

    assert by_name == library.load(Recipe, str(library.root / "bread" / "1.2.0.yaml"))
    assert library.names() == ["bread", "cake"]


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("bred", "unknown recipe 'bred'; did you mean bread?"),
        ("pizza", "unknown recipe 'pizza'; known: bread, cake"),
        ("bread@2.0.0", r"recipe 'bread' has no version '2\.0\.0'; known: 1\.0\.0, 1\.2\.0, 1\.10\.0"),
        ("bread@", "recipe 'bread' has no version ''"),
        ("", "unknown recipe ''"),
        ("nowhere/bread.yaml", "recipe file nowhere/bread.yaml does not exist"),
    ],
)
def test_unknown_names_are_answered(library: Library, ref: str, message: str) -> None:
    """A name that is not there is refused with the ones that are; so is ``name@``, a version that got lost."""
    with pytest.raises(UnknownNameError, match=message):
        library.load(Recipe, ref)


def test_empty_library_knows_nothing(tmp_path: Path) -> None:
    """A library whose folder is missing has no names, and says so."""
    with pytest.raises(UnknownNameError, match="known: none"):
        Library("recipe", tmp_path / "none").load(Recipe, "bread")


def test_released_version_that_was_edited_is_tampered(library: Library) -> None:
    """A released document whose meaning changed is refused by name and by file."""
    path = library.root / "bread" / "1.2.0.yaml"
    path.write_text(path.read_text().replace("minutes: 30", "minutes: 3"))

    for ref in ("bread@1.2.0", str(path)):
        with pytest.raises(TamperedError, match=r"bread@1\.2\.0 was changed after its release"):
            library.load(Recipe, ref)
    assert library.load(Recipe, "bread@1.0.0").version == "1.0.0"


def test_layout_is_not_meaning(library: Library) -> None:
    """Comments, the order of fields and the style of YAML leave the digest as it was."""
    path = library.root / "bread" / "1.2.0.yaml"
    path.write_text("# by hand\noven:\n  minutes: 30\nversion: '1.2.0'\nname: bread\nschema_version: 1\n")

    assert library.load(Recipe, "bread@1.2.0").oven.minutes == 30


def test_stating_a_default_is_a_change(library: Library) -> None:
    """What a document states is what is locked, so a default that is spelled out is a new document."""
    path = library.root / "bread" / "1.2.0.yaml"
    path.write_text(path.read_text().replace("{minutes: 30}", "{minutes: 30, heat: 1.0}"))

    with pytest.raises(TamperedError):
        library.load(Recipe, "bread@1.2.0")


def test_schema_that_grows_keeps_old_digests(library: Library) -> None:
    """A field that a later program adds, with a default, does not change what was released before."""

    class LaterRecipe(Recipe):
        """The same kind of document, one program version later."""

        glaze: str = "none"

    assert library.load(LaterRecipe, "bread@1.2.0").digest == library.load(Recipe, "bread@1.2.0").digest


@pytest.mark.parametrize("content", ["", "{", "[]", '{"1.0.0": 3}', "null"])
def test_broken_lock_is_refused(library: Library, content: str) -> None:
    """A lock that cannot be read protects nothing, so nothing is loaded past it."""
    lock = library.root / "bread" / "lock.json"
    lock.write_text(content)

    with pytest.raises(InvalidDocumentError, match=r"lock\.json"):
        library.load(Recipe, "bread@1.0.0")
    with pytest.raises(InvalidDocumentError, match=r"lock\.json"):
        read_lock(lock)


def test_document_in_the_wrong_place_is_refused(library: Library) -> None:
    """A file whose place says one version and whose text says another is refused."""
    (library.root / "cake" / "1.1.0.yaml").write_text(BODY)

    with pytest.raises(InvalidDocumentError, match=r"says it is bread@1\.0\.0, but its place says cake@1\.1\.0"):
        library.load(Recipe, "cake")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BODY + "name: cake\n", "line 5: key 'name' is given twice"),
        (BODY.replace("{minutes: 30}", "{minutes: 30, minutes: 40}"), "line 4: key 'minutes' is given twice"),
        (BODY + "oveN: {minutes: 3}\n", r"oveN: unknown field; did you mean oven"),
        (BODY.replace("minutes: 30", "minutes: 30, heta: 2"), r"oven\.heta: unknown field; did you mean heat\?"),
        (BODY + "steps: [{minutes: 1}, {minuts: 2}]\n", r"steps\.1\.minuts: unknown field; did you mean minutes\?"),
        (BODY.replace("minutes: 30", "minutes: 30, heat: .nan"), r"oven\.heat: .*finite"),
        (BODY.replace("minutes: 30", "minutes: 30, heat: -.inf"), r"oven\.heat: .*finite"),
        (BODY.replace("minutes: 30", "minutes: soon"), r"oven\.minutes: .*found 'soon'"),
        (BODY.replace("oven: {minutes: 30}\n", ""), "oven: required field is missing"),
        (BODY.replace("1.0.0", "1.0"), "version: "),
        (BODY.replace("1.0.0", "01.0.0"), "version: "),
        (BODY.replace("bread", "Bread!"), "name: "),
        (BODY.replace("schema_version: 1", "schema_version: 2"), "schema_version: "),
        ("", "found NoneType, expected a mapping"),
        ("- a\n- b\n", "found list, expected a mapping"),
        ("just text", "found str, expected a mapping"),
        ("a: [", "not valid YAML"),
        ("a: !!python/object/apply:os.system [true]", "not valid YAML"),
        (b"a: \xff\xfe", "cannot be read"),
        ("a: \x00", "not valid YAML"),
    ],
)
def test_bad_text_is_refused_by_field(read: Callable[[str | bytes], Recipe], text: str | bytes, message: str) -> None:
    """Every fault is told with its place, what was found and the nearest right thing."""
    with pytest.raises(InvalidDocumentError, match=message):
        read(text)


def test_all_faults_are_told_at_once(read: Callable[[str | bytes], Recipe]) -> None:
    """Two faults make one message with two lines, so that a file is mended in one go."""
    with pytest.raises(InvalidDocumentError) as caught:
        read(BODY.replace("minutes: 30", "minutes: soon, heta: 2"))

    assert "oven.minutes" in str(caught.value)
    assert "oven.heta" in str(caught.value)


def test_file_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    """A folder in the place of a document is told, not raised through."""
    with pytest.raises(InvalidDocumentError, match="cannot be read"):
        read_yaml(tmp_path)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(string.printable), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_digest_is_of_the_value(value: object) -> None:
    """A value that went through JSON and back, its keys in another order, has the same digest."""
    again = json.loads(json.dumps(value, sort_keys=True))

    assert canonical_digest(again) == canonical_digest(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**60, object()])
def test_what_json_cannot_say_has_no_digest(value: object) -> None:
    """NaN, infinity, integers that JSON readers round, and strangers are refused."""
    with pytest.raises(InvalidDocumentError, match="no canonical form"):
        canonical_digest({"value": value})


def test_digest_is_known() -> None:
    """The digest is sha256 over RFC 8785 JSON and nothing else, so that other programs can compute it."""
    assert canonical_digest({"b": 1.0, "a": "é"}) == hashlib.sha256('{"a":"é","b":1}'.encode()).hexdigest()
