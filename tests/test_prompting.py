"""What stands around the text: templates, system prompts, prefixes, reasoning, and where an answer stops."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.errors import ExitCode, RefusedError, UnsupportedError
from evalgate.records import Outcome
from evalgate.store import RunFolder
from evalgate.tasks.haystack import Builder
from evalgate.tasks.scoring import score
from evalgate.tasks.stopping import cut
from evalgate.tasks.suite import Suite, load_suite

Evalgate = Callable[..., Any]


def suite_of(**fields: Any) -> Suite:
    """The smoke suite with other fields."""
    return Suite.model_validate(load_suite("smoke").model_dump(by_alias=True, exclude_unset=True) | fields)


@pytest.mark.parametrize("template", ["chat", "base"])
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_prompt_has_one_first_token_and_no_special_inside(
    template: str, system: str | None, builtin_tokenizer: Any
) -> None:
    """With either template, with and without a system prompt, BOS stands once and first."""
    builder = Builder(suite_of(prompting={"template": template, "system": system}), builtin_tokenizer, "main")
    haystack = builder.build(0, builder.streams[0])
    first, special = haystack.tokens[0], {0, 1, 2, 3, 4}

    assert haystack.tokens.count(first) == 1 == first
    assert not special & set(haystack.tokens[haystack.context_start :])


def test_a_system_prompt_and_a_prefix_are_part_of_the_prompt(builtin_tokenizer: Any) -> None:
    """The system prompt comes first, the prefix last, and the length holds them."""
    prompting = {"template": "base", "system": "Be brief.", "answer_prefix": "Answer:"}
    builder = Builder(suite_of(prompting=prompting), builtin_tokenizer, "main")
    plain = Builder(suite_of(), builtin_tokenizer, "main")
    haystack = builder.build(0, builder.streams[0])
    probe = haystack.probes[0]

    assert builtin_tokenizer.decode(haystack.tokens).startswith("Be brief.\nRead the report")
    assert builtin_tokenizer.decode(probe.tail).endswith("?\nAnswer:")
    assert builder.reserve > plain.reserve
    end = haystack.ends[probe.cell.length]
    assert end + len(probe.tail) + builder.suite.decoding.max_tokens <= probe.cell.length


def test_reasoning_counts_in_the_length(builtin_tokenizer: Any) -> None:
    """Tokens for reasoning come off the context, not on top of the length."""
    decoding = {"max_tokens": 12, "temperature": 0}
    thinking = Builder(suite_of(decoding=decoding | {"thinking_tokens": 200}), builtin_tokenizer, "main")

    assert thinking.reserve == Builder(suite_of(decoding=decoding), builtin_tokenizer, "main").reserve + 200


def test_room_for_reasoning_is_an_option_of_a_run(evalgate: Evalgate, tmp_path: Path) -> None:
    """``--thinking-tokens`` is another suite by digest; the suite's own number is the suite as it is."""
    words = ("run", "smoke", "--model", "builtin:hybrid", "--seeds", 1, "--thinking-tokens")
    for tokens in (0, 32):
        assert evalgate(*words, tokens, "--out", tmp_path / str(tokens)).code == ExitCode.PASS
    plain, thinking = (RunFolder.open(tmp_path / name).manifest() for name in ("0", "32"))

    assert plain.suite.digest == load_suite("smoke").digest != thinking.suite.digest
    assert thinking.reserve_tokens == plain.reserve_tokens + 32
    assert evalgate(*words, -1, "--out", tmp_path / "less").code == ExitCode.REFUSED


def test_a_template_without_a_place_for_the_system_is_refused(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    """Silently leaving the system prompt out would change what is asked."""
    folder = Path(shutil.copytree(tiny_models["hybrid"], tmp_path / "model"))
    (folder / "chat_template.jinja").write_text("{{ messages[-1]['content'] }}<reply>")

    with pytest.raises(UnsupportedError, match="no place for a system prompt"):
        ModelTokenizer(folder).render_chat(system="Be brief.")


@pytest.mark.parametrize(
    ("text", "finish", "kept", "ended"),
    [
        (" 7319\nQuestion: what", "length", " 7319", "stop"),
        ("\n\n 7319\nmore", "length", "\n\n 7319", "stop"),
        ("7319", "stop", "7319", "stop"),
        ("7319 and on", "length", "7319 and on", "length"),
        ("<think>a\n\nb</think> 7319\nmore", "length", "<think>a\n\nb</think> 7319", "stop"),
        ("a\n\nb</think>\n7319\nmore", "length", "a\n\nb</think>\n7319", "stop"),
        ("<think>a\n7319\n", "length", "<think>a\n7319\n", "length"),
        ("7319\n", "error", "7319\n", "error"),
    ],
)
def test_stops_end_the_answer_and_never_the_reasoning(text: str, finish: str, kept: str, ended: str) -> None:
    """The first stop after the reasoning counts, and an answer that it ends was whole."""
    assert cut(text, finish, ["\n"]) == (kept, ended)


def test_an_unclosed_thought_that_names_the_value_is_truncated() -> None:
    """Also where a stop stands in it."""
    answer = cut("<think>maybe\n7319", "length", ["\n"])

    assert score(answer.text, answer.finish_reason, "7319") is Outcome.TRUNCATED


def test_what_a_prefix_says_is_not_scored() -> None:
    """A model that adds nothing to a prefix which names the value said nothing."""
    assert score("", "stop", "7319") is Outcome.EMPTY


@pytest.mark.parametrize("field", ["system", "answer_prefix"])
def test_a_special_token_in_a_prompts_text_is_refused(field: str, builtin_tokenizer: Any) -> None:
    """A turn marker that a suite writes would end the prompt."""
    with pytest.raises(RefusedError, match=f"prompting.{field} .* holds a special token"):
        Builder(suite_of(prompting={"template": "chat", field: "Be brief.<|end|>"}), builtin_tokenizer, "main")
