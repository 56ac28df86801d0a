"""Tokenizers: the model's own, never truncating, and templates taken apart around the user's text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.errors import CheckpointError, UnsupportedError


@pytest.fixture
def folder(tiny_models: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a tiny model's folder that a test may change."""
    return Path(shutil.copytree(tiny_models["hybrid"], tmp_path / "model"))


def test_any_text_goes_there_and_back(trained_or_random: Path) -> None:
    """Text in any script comes back as it was, alone and in a batch, and no token is added."""
    tokenizer = ModelTokenizer(trained_or_random)
    texts = ["a b", " Zürich 7\n", "東京 🚆", "\x00 tab\tend", ""]
    batch = tokenizer.encode_batch(texts)
    assert batch == [tokenizer.encode(text) for text in texts]
    assert [tokenizer.decode(ids) for ids in batch] == texts
    assert batch[-1] == []


def test_template_is_head_and_tail_around_the_text(folder: Path) -> None:
    """Special tokens of the template are one id each, and are left out when an answer is decoded."""
    tokenizer = ModelTokenizer(folder)
    head, tail, turn = tokenizer.render_chat("Where is pier nine?")
    assert (head, tail) == ("<bos><user>", "<reply>")
    assert turn == "<user>"
    assert tokenizer.encode(head + "x" + tail) == [1, 3, tokenizer.encode("x")[0], 4]
    assert tokenizer.decode([*tokenizer.encode("ok"), 2]) == "ok"
    assert tokenizer.eos_ids == {2}


def test_without_a_template_there_is_a_plain_form(folder: Path) -> None:
    """The first token that the tokenizer knows, the text, a line end."""
    (folder / "chat_template.jinja").unlink()
    assert ModelTokenizer(folder).render_chat() == ("<bos>", "\n", "\n")


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ messages[0]['content'] | upper }}", UnsupportedError),
        ("{{ messages[0]['content'] }}|{{ messages[0]['content'] }}", UnsupportedError),
        ("{{ messages[0]['content'] | trim }}", UnsupportedError),
        ("{{ raise_exception('no') }}", CheckpointError),
        ("{{ nothing.here }}", CheckpointError),
    ],
    ids=["changes", "repeats", "trims", "raises", "broken"],
)
def test_templates_that_do_not_keep_the_text_are_refused(folder: Path, template: str, error: type[Exception]) -> None:
    """Positions are counted in the rendered prompt, so a template may not change what is counted."""
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(error):
        ModelTokenizer(folder).render_chat(" text with blanks around ")


def test_truncation_and_padding_of_the_file_are_switched_off(folder: Path) -> None:
    """A tokenizer saved with a limit still gives every token of a long text."""
    file = folder / "tokenizer.json"
    body = json.loads(file.read_text())
    body["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    body["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    file.write_text(json.dumps(body))
    assert len(ModelTokenizer(folder).encode("x" * 500)) == 500
    assert len(ModelTokenizer(folder).encode("x")) == 1


def test_identity_follows_the_files(folder: Path) -> None:
    """Another template or vocabulary is another tokenizer."""
    before = ModelTokenizer(folder).sha256
    assert ModelTokenizer(folder).sha256 == before
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert ModelTokenizer(folder).sha256 != before


def test_every_id_that_ends_an_answer_counts(folder: Path) -> None:
    """Of the tokenizer, of generation_config.json and of config.json, single or in a list."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 4]}))
    assert ModelTokenizer(folder).eos_ids == {2, 4}


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_unusable_tokenizer_is_a_broken_checkpoint(folder: Path, content: str | None) -> None:
    """Missing, cut short or empty: named, with the folder."""
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match="tokenizer"):
        ModelTokenizer(folder)
