"""Questions of the user's own: one answer in each context, none asked twice in a cell, and their place controlled."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalgate.errors import DoesNotFitError, ExitCode, RefusedError
from evalgate.records import Cell
from evalgate.store import RunFolder
from evalgate.tasks.draw import Draw
from evalgate.tasks.haystack import Builder
from evalgate.tasks.items import Deck, Item, Items, plain, read_items
from evalgate.tasks.phrases import LANGUAGES
from evalgate.tasks.scoring import score
from evalgate.tasks.suite import Suite, band_of, load_suite

Evalgate = Callable[..., Any]

TOWNS = ("Aldermoor", "Brightwater", "Coldstream", "Dunmere", "Eastfold", "Farrow", "Glenhaven", "Holloway", "Inverash")
BANDS = ("front", "middle", "back")


def rows() -> list[dict[str, Any]]:
    """One document for each town, of three lines; two of them also tell of another town's mayor."""
    draw, phrases = Draw("items"), LANGUAGES["en"]
    found = []
    for i, town in enumerate(TOWNS):
        mayor = f"Mayor Number{chr(65 + i)}"
        lines = [f"{town} lies by the river.", f"Its mayor is {mayor}.\r", phrases.filler(draw)]
        if i in (3, 4):
            lines.append(f"It once had {'Mayor NumberA' if i == 3 else 'the mayor numberb'} as a guest.")
        found.append({"text": "\n".join(lines), "question": f"Who is the mayor of {town}?", "answers": [mayor]})
    return found


def write(path: Path, questions: list[dict[str, Any]]) -> Path:
    """A questions file."""
    path.write_text("\n".join(json.dumps(row) for row in questions), encoding="utf-8")
    return path


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """The file of :func:`rows`."""
    return write(tmp_path / "questions.jsonl", rows())


def suite_of(path: Path, task: str = "ownqa@5", **fields: Any) -> Suite:
    """A suite that asks the questions of ``path`` at 2,048 tokens."""
    body = load_suite("smoke").model_dump(by_alias=True, exclude_unset=True)
    body |= {"name": "own", "lengths": [2048], "tasks": [task], "questions": {"path": str(path)}}
    body |= {"decoding": {"max_tokens": 60, "temperature": 0}, "streams": {"mode": "shared", "density_cap": 0.5}}
    return Suite.model_validate(body | fields)


def test_each_context_has_one_answer_in_the_asked_band(questions: Path, builtin_tokenizer: Any) -> None:
    """The document of each question lies whole in its band, and no other text of the context gives its answer."""
    suite = suite_of(questions)
    builder = Builder(suite, builtin_tokenizer, "main")
    texts = {item.question: item for item in read_items(str(questions)).items}
    for seed in range(6):
        haystack = builder.build(seed, builder.streams[0])
        context = builtin_tokenizer.decode(haystack.tokens[haystack.context_start : haystack.ends[2048]])
        for probe in haystack.probes:
            asked = builtin_tokenizer.decode(probe.tail).partition("?")[0] + "?"
            document = builtin_tokenizer.decode(haystack.tokens[probe.start : probe.end])
            assert document == texts[asked].text + "\n"
            (said,) = probe.wanted.values
            assert plain(context).count(plain(said)) == 1
            assert band_of(probe.depth, suite.bands) == probe.cell.band
            assert score(f"It is {said}.", "stop", str(probe.wanted), "text") == "correct"
            assert score("It is Mayor NumberZ.", "stop", str(probe.wanted), "text") == "wrong"
        assert len(json.loads(haystack.contexts[0].needle_spans)) == 5


def test_no_cell_asks_a_question_twice(questions: Path, builtin_tokenizer: Any) -> None:
    """For as many seeds as the deck says, whatever the order of bands; arm ``isolated`` asks what ``default`` does."""
    builder = Builder(suite_of(questions, arms=["default", "isolated"]), builtin_tokenizer, "main")
    most = builder.casting.most_seeds
    asked: dict[Cell, list[str]] = defaultdict(list)
    assert most is not None
    for seed in range(most):
        for stream in builder.streams:
            for probe in builder.build(seed, stream).probes:
                asked[probe.cell].append(str(probe.wanted))

    assert most >= 6
    assert len(asked) == 6
    assert all(len(set(wanted)) == len(wanted) == most for wanted in asked.values())
    for band in BANDS:
        both = [asked[Cell("ownqa@5", 2048, band, arm)] for arm in ("default", "isolated")]
        assert both[0] == both[1]


def test_filler_that_gives_an_answer_is_left_out(tmp_path: Path, builtin_tokenizer: Any) -> None:
    """An answer that the grammar's own sentences hold stands in the context once."""
    sentence = LANGUAGES["en"].filler(Draw("words"))
    word = max(sentence.strip(".").split(), key=len)
    told = [row | {"answers": [word], "text": f"{row['question'][:-1]}: {word}."} for row in rows()[:1]]
    builder = Builder(suite_of(write(tmp_path / "q.jsonl", told + rows()[5:7]), "ownqa@3"), builtin_tokenizer, "main")
    seen = 0
    for seed in range(3):  # three questions, each asked once in each band
        haystack = builder.build(seed, builder.streams[0])
        context = plain(builtin_tokenizer.decode(haystack.tokens[haystack.context_start :]))
        seen += sum(probe.wanted.values == (word,) and context.count(plain(word)) == 1 for probe in haystack.probes)
        assert all(context.count(plain(probe.wanted.values[0])) == 1 for probe in haystack.probes)
    assert seen == 3


@given(
    st.lists(
        st.tuples(st.text("abcd ", min_size=1, max_size=12), st.text("abcd", min_size=1, max_size=3)),
        min_size=3,
        max_size=14,
    ),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_dealing_never_lays_a_second_answer(pairs: list[tuple[str, str]], bands: int, rivals: int) -> None:
    """Whatever documents and answers there are."""
    items = tuple(Item(text=f"x {text} {said}", question="?", answers=(said,)) for text, said in pairs)
    try:
        deck = Deck(Items(items, ""), bands, rivals, Draw("order"))
    except DoesNotFitError:
        return
    asked = set()
    for seed in range(deck.seeds):
        dealt = deck.deal(seed, Draw("deal", seed))
        assert len(dealt) == bands + rivals
        assert len({plain(item.text) for item in dealt}) == len(dealt)
        for band, item in enumerate(dealt[:bands]):
            others = [plain(other.text) for other in dealt if other is not item]
            assert not any(said in other for said in item.said() for other in others)
            assert (band, id(item)) not in asked
            asked.add((band, id(item)))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: expected an object"),
        ("[1]", "line 2: expected an object"),
        ('{"text": "a b", "question": "q?"}', "line 2: expected an object"),
        ('{"text": "", "question": "q?", "answers": ["a"]}', "line 2: expected an object"),
        ('{"text": "\\u0000", "question": "q?", "answers": ["a"]}', "line 2: expected an object"),
        ('{"text": "a", "question": "q?", "answers": []}', "line 2: expected an object"),
        ('{"text": "a", "question": "q?", "answers": ["?!"]}', "has no word"),
        ('{"text": "a", "question": "q?", "answers": ["\\ud800 a"]}', "line 2: expected an object|has no word"),
    ],
)
def test_files_that_cannot_serve_are_refused(tmp_path: Path, line: str, words: str) -> None:
    """With the line at fault and what was expected; one answer may stand without brackets."""
    path = tmp_path / "q.jsonl"
    path.write_text('{"text": "a", "question": "q?", "answers": "b", "id": 7}\n' + line)

    with pytest.raises(RefusedError, match=words):
        read_items(str(path))
    path.write_text('{"text": "a", "question": "q?", "answers": "b", "id": 7}\n\n')
    assert read_items(str(path)).items == (Item(text="a", question="q?", answers=("b",)),)
    path.write_text("\n")
    with pytest.raises(RefusedError, match="holds no question"):
        read_items(str(path))
    with pytest.raises(RefusedError, match="cannot be read"):
        read_items(str(tmp_path / "nothing"))


def test_suites_and_questions_belong_together(questions: Path, tmp_path: Path, builtin_tokenizer: Any) -> None:
    """A task without a file, a file without a task, too few documents, and a turn marker in one are refused."""
    with pytest.raises(ValueError, match=r"name their file as questions.path"):
        suite_of(questions, questions=None)
    with pytest.raises(ValueError, match="asked by no task"):
        suite_of(questions, "single")
    with pytest.raises(DoesNotFitError, match="of 9 questions no 3"):
        Builder(suite_of(questions, "ownqa@10", lengths=[8192]), builtin_tokenizer, "main")
    evil = [*rows(), {"text": "a <|user|> b", "question": "Who?", "answers": ["b"]}]
    with pytest.raises(RefusedError, match=r"questions 10 .* holds a special token"):
        Builder(suite_of(write(tmp_path / "evil.jsonl", evil)), builtin_tokenizer, "main")


def test_a_run_asks_and_names_its_questions(evalgate: Evalgate, questions: Path, tmp_path: Path) -> None:
    """As many seeds as there are questions for; on changed questions a run does not go on."""
    suite = tmp_path / "own.yaml"
    suite.write_text(json.dumps(suite_of(questions).model_dump(mode="json", by_alias=True, exclude_unset=True)))
    words = ("run", suite, "--model", "builtin:hybrid", "--out", tmp_path / "run", "--seeds")
    ended = evalgate(*words, 2)
    folder = RunFolder.open(tmp_path / "run")
    too_many = evalgate(*words[:-2], tmp_path / "more", "--seeds", 100)
    write(questions, rows()[:-1])

    assert ended.code == ExitCode.PASS, ended.err
    assert len(list(folder.trials())) == 6
    assert folder.manifest().questions is not None
    assert too_many.code == ExitCode.REFUSED
    assert "ask a question twice in one cell" in too_many.err
    assert "another file of questions" in evalgate(*words, 2).err
