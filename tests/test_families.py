"""Families: every question has the one answer that its haystack gives, wherever its needles lie."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fixtures_reader import Reader

from evalgate.errors import DoesNotFitError, UnknownNameError
from evalgate.records import Cell
from evalgate.tasks import names, words
from evalgate.tasks.draw import Draw
from evalgate.tasks.families import FAMILIES, WHOLE, Cast, Script
from evalgate.tasks.haystack import Builder, Haystack
from evalgate.tasks.phrases import LANGUAGES
from evalgate.tasks.registers import REGISTERS
from evalgate.tasks.scoring import score
from evalgate.tasks.suite import Suite, band_of, load_suite
from evalgate.tasks.task import RULER, Task

BANDS = {"front": (0.0, 0.3333), "middle": (0.3333, 0.6667), "back": (0.6667, 1.0)}
TASKS = (
    "single", "single_word", "single_uuid", "multikey@8", "multikey_uuid@4", "multivalue@4", "multiquery@3",
    "overwrite@3", "interference@12", "load@24", "distance@8", "count@6", "ordinal@4", "absent@8", "trace@4",
    "compose", "latent@8", "frequent@3", "common@10", "code@8", "chat@3", "speaker@8", "coverage@8", "docqa@8",
    "docqa_hop",
)  # fmt: skip
HARDEST = ("multikey@128", "load@90", "interference@32", "overwrite@32", "ordinal@16", "trace@8", "distance@20")
SEEDS = 12


def suite_of(tasks: list[str], **fields: Any) -> Suite:
    """A suite that asks ``tasks`` at 4,096 tokens."""
    body = load_suite("needle").model_dump(by_alias=True, exclude_unset=True)
    body |= {"name": "families", "lengths": [4096], "tasks": tasks}
    body |= {"decoding": {"max_tokens": 420, "temperature": 0}, "streams": {"mode": "shared", "density_cap": 0.5}}
    return Suite.model_validate(body | fields)


def script(name: str, seed: int) -> tuple[Task, Script, Cast]:
    """One script of a task, and what it was written with."""
    task, phrases, draw = Task(name), LANGUAGES["en"], Draw("families", name, seed)
    need = task.family.needs(task.rung, BANDS)
    cast = Cast(
        phrases=phrases,
        noun="report",
        forms=draw.permutation(range(len(phrases.forms)))[: need.forms],
        keys=names.draw_keys(draw, need.keys),
        values=names.draw_values(draw, need.kind, need.values),
        place=lambda draw, low, high: low + (high - low) * draw.unit(),
    )
    return task, task.family.script(task.rung, BANDS, draw, cast), cast


def context(haystack: Haystack, length: int, tokenizer: Any) -> str:
    """The text between the instruction and the question."""
    return str(tokenizer.decode(haystack.tokens[haystack.context_start : haystack.ends[length]]))


@pytest.mark.parametrize("name", [*TASKS, *HARDEST])
def test_scripts_keep_their_promises(name: str) -> None:
    """One question in each band that is asked, in its band; never more statements before a depth than is said."""
    for seed in range(40):
        task, told, cast = script(name, seed)
        assert sorted(query.band for query in told.queries) == sorted(task.family.asked(BANDS))
        for i, statement in enumerate(told.statements):
            assert 0.0 <= statement.depth <= 1.0
            assert statement.before is None or i < statement.before < len(told.statements)
            if statement.band is not None:
                assert band_of(statement.depth, BANDS) == statement.band
            if statement.before is not None:
                assert statement.depth <= told.statements[statement.before].depth
        for query in told.queries:
            if query.band != WHOLE:
                assert told.statements[query.about[0]].band == query.band
            assert len(query.wanted.values) <= task.family.answers(task.rung)
        assert {statement.form for statement in told.statements} <= set(range(len(cast.forms)))
        for depth in (0.1, 0.3333, 0.5, 0.7, 1.1):
            most = task.family.most_before(task.rung, BANDS, depth)
            assert sum(statement.depth < depth for statement in told.statements) <= most


def test_every_family_is_tested() -> None:
    """The list above names each of them, so that a new one is not forgotten; test_items.py has the user's own."""
    written = {name for name, family in FAMILIES.items() if not family.own_items}
    assert {name.partition("@")[0] for name in TASKS} == written


@pytest.mark.parametrize("register", [None, "needles", "noise", "chat", "log", "table", "code"])
def test_the_text_gives_the_wanted_answer_and_no_other(register: str | None, builtin_tokenizer: Any) -> None:
    """A reader of the context alone answers every question as wanted, in every band and register."""
    tasks = [*TASKS, *HARDEST]
    if register:
        tasks = [f"{task}+{register}" for task in TASKS if not Task(task).family.own_filler]
    builder = Builder(suite_of(tasks), builtin_tokenizer, "main")
    read = Counter[str]()
    for seed, stream in itertools.product(range(2 if register else 4), builder.streams):
        haystack = builder.build(seed, stream)
        reader = Reader(context(haystack, 4096, builtin_tokenizer))
        for probe in haystack.probes:
            answer = reader.answer(builtin_tokenizer.decode(probe.tail))
            assert answer == set(probe.wanted.values), probe.cell
            said = ", ".join(sorted(answer))
            assert score(said, "stop", str(probe.wanted), probe.wanted.scorer) == "correct"
            read[probe.cell.task] += 1

    assert read.keys() == set(tasks)


@pytest.mark.parametrize("name", [name for name in TASKS if not Task(name).family.own_filler])
def test_another_haystacks_answer_is_wrong(name: str, builtin_tokenizer: Any) -> None:
    """The answers of one seed score nothing on another's questions, but for a count that happens to agree."""
    builder = Builder(suite_of([name]), builtin_tokenizer, "main")
    (stream,) = builder.streams
    here, there = builder.build(0, stream), builder.build(1, stream)
    for probe, other in zip(here.probes, there.probes, strict=True):
        if probe.wanted != other.wanted:
            assert score(str(other.wanted), "stop", str(probe.wanted), probe.wanted.scorer) != "correct"


@pytest.mark.parametrize("name", ["trace@8", "ordinal@16", "distance@20", "overwrite@32"])
def test_what_must_come_later_comes_later(name: str, builtin_tokenizer: Any) -> None:
    """Links, later mentions and writes lie after what they follow, also where the context's end pushes them back."""
    builder = Builder(suite_of([name]), builtin_tokenizer, "main")
    (stream,) = builder.streams
    task = Task(name)
    for seed in range(SEEDS):
        haystack = builder.build(seed, stream)
        spans = json.loads(haystack.contexts[0].needle_spans)
        (part,) = builder.casting.parts(seed, stream)
        assert len(spans) == len(part.script.statements) == task.family.most_before(task.rung, BANDS, 1.1)
        for i, statement in enumerate(part.script.statements):
            if statement.before is not None:
                assert spans[i][1] <= spans[statement.before][0]
        for probe in haystack.probes:
            assert band_of(probe.depth, BANDS) == probe.cell.band


def test_distance_counts_writes_not_tokens(builtin_tokenizer: Any) -> None:
    """Whatever the band, as many writes lie after the last needle as the rung says."""
    builder = Builder(suite_of(["distance@20"]), builtin_tokenizer, "main")
    for seed in range(SEEDS):
        haystack = builder.build(seed, builder.streams[0])
        starts = sorted(span[0] for span in json.loads(haystack.contexts[0].needle_spans))
        last = max(probe.start for probe in haystack.probes)
        assert sum(start > last for start in starts) == 20


def test_a_family_that_counts_facts_has_its_haystacks_to_itself(builtin_tokenizer: Any) -> None:
    """Other tasks' needles would be writes and keys too."""
    builder = Builder(suite_of(["single", "load@24", "distance@8", "multikey@8"]), builtin_tokenizer, "main")
    shared = [{entry.task for entry in stream.entries} for stream in builder.streams]

    assert sorted(shared, key=min) == [{"distance@8"}, {"load@24"}, {"single", "multikey@8"}]
    for stream in builder.streams:
        for probe in builder.build(0, stream).probes:
            if probe.cell.task == "load@24":
                assert probe.facts == probe.same_form == 24


def test_counts_of_a_form_give_nothing_away() -> None:
    """In ``count`` the lines of the form are as many whatever the answer is, and every answer comes up."""
    told = [script("count@4", seed)[1] for seed in range(200)]

    assert {len(one.statements) for one in told} == {5}
    assert {one.queries[0].wanted.values for one in told} == {("1",), ("2",), ("3",), ("4",)}


def test_interfering_keys_differ_in_one_word() -> None:
    """All keys of a haystack share their noun, and none is of the quarter that models are trained on."""
    _, told, _ = script("interference@32", 0)
    keys = [statement.text.split(" of the ")[1].split(" is ")[0].split() for statement in told.statements]

    assert len({noun for _, noun in keys}) == 1
    assert len({adjective for adjective, _ in keys}) == 32
    assert not any(words.reserved_key(words.ADJECTIVES.index(a), words.NOUNS.index(n)) for a, n in keys)


def test_every_noun_has_keys_for_the_hardest_rung() -> None:
    """``interference`` at its highest rung can be drawn whatever its noun is."""
    for noun in range(len(words.NOUNS)):
        keys = [key for a in range(len(words.ADJECTIVES)) if not words.reserved_key(*(key := names.Key(a, noun)))]
        assert len(names.siblings(Draw("siblings", noun), keys[0], 32)) == 32


def test_ruler_presets_are_tasks(builtin_tokenizer: Any) -> None:
    """Each of the thirteen has a name here; those over one text build, each in its bands."""
    suite = load_suite("ruler-13")
    builder = Builder(suite, builtin_tokenizer, "main")
    asked = {probe.cell for stream in builder.streams for probe in builder.build(0, stream).probes}

    assert list(RULER) == suite.tasks
    assert asked == set(suite.cells())


@pytest.mark.parametrize("name", ["single@3", "multikey", "multikey@2", "load@5000", "count@1", "frequent@9"])
def test_a_rung_that_a_family_lacks_is_refused(name: str) -> None:
    """With what it has."""
    with pytest.raises(ValueError, match="rung"):
        Task(name)


@pytest.mark.parametrize("name", ["singel", "single+prose", "multikey@08", "Multikey@8", "common@3+chat"])
def test_an_unknown_task_is_refused(name: str) -> None:
    """With the nearest that is known, or what to leave out."""
    with pytest.raises((UnknownNameError, ValueError), match=r"unknown|leave it out"):
        Task(name)


def test_answers_need_room(builtin_tokenizer: Any) -> None:
    """A suite whose answers can be longer than it allows is refused before anything is asked."""
    suite = suite_of(["multivalue@8"], decoding={"max_tokens": 12, "temperature": 0})

    with pytest.raises(DoesNotFitError, match="max_tokens 12 is less than"):
        Builder(suite, builtin_tokenizer, "main")


@pytest.mark.parametrize("register", REGISTERS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_needles_look_like_their_register(register: str, language: Any, coarse_tokenizer: Any) -> None:
    """In every register and language a needle's line has the look of the filler, and stands where it is said to."""
    haystack = {"source": "grammar", "register": register, "language": language, "data_class": "public"}
    builder = Builder(suite_of(["multikey@8"], haystack=haystack), coarse_tokenizer, "main")
    built = builder.build(0, builder.streams[0])
    lines = [coarse_tokenizer.decode(built.tokens[p.start : p.end]) for p in built.probes]
    text = context(built, 4096, coarse_tokenizer)
    first = {"log": r"(INFO|WARN|DEBUG) ", "table": r"row \| ", "code": r"step_\d\d\(", "chat": r"[\w-]+: "}

    for probe, line in zip(built.probes, lines, strict=True):
        assert line.count("\n") == 1
        assert line.endswith("\n")
        assert str(probe.wanted) in line
        assert text.count(str(probe.wanted)) == 1
    if register in first:
        pattern = re.compile(first[register])
        assert all(pattern.match(line) for line in [*lines, *text.splitlines()[:-1]])


def test_isolated_needles_are_alone(builtin_tokenizer: Any) -> None:
    """Under the arm ``isolated`` a context holds what one question needs and nothing else; answers stay the same."""
    suite = suite_of(["multikey@8", "overwrite@3", "trace@2", "absent@5"], arms=["default", "isolated"])
    builder = Builder(suite, builtin_tokenizer, "main")
    alone = {"multikey@8": 1, "overwrite@3": 1, "trace@2": 3, "absent@5": 5}
    asked: list[Cell] = []
    for stream in builder.streams:
        haystack = builder.build(3, stream)
        reader = Reader(context(haystack, 4096, builtin_tokenizer))
        for probe in haystack.probes:
            asked.append(probe.cell)
            assert stream.asks(probe.cell)
            assert reader.answer(builtin_tokenizer.decode(probe.tail)) == set(probe.wanted.values)
            if probe.cell.arm == "isolated":
                assert probe.facts == alone[probe.cell.task]

    assert Counter(asked) == Counter(suite.cells())


def test_turns_ask_one_conversation(builtin_tokenizer: Any) -> None:
    """Under ``turns`` each question follows those before it with their right answers, and all are asked."""
    suite = suite_of(["multikey@8", "overwrite@3"], arms=["default", "turns"])
    builder = Builder(suite, builtin_tokenizer, "main")
    haystack = builder.build(0, builder.streams[0])
    fresh = {probe.cell: probe for probe in haystack.probes if probe.cell.arm == "default"}
    turns = sorted((p for p in haystack.probes if p.cell.arm == "turns"), key=lambda probe: len(probe.tail))

    assert len(turns) == len(fresh) == 6
    for k, probe in enumerate(turns):
        own = fresh[probe.cell._replace(arm="default")]
        assert probe.tail[len(probe.tail) - len(own.tail) :] == own.tail
        assert probe.tail[: len(turns[k - 1].tail)] == turns[k - 1].tail or k == 0
        assert len(probe.tail) <= builder.wording.tail_tokens
        assert sum(str(other.wanted) in builtin_tokenizer.decode(probe.tail) for other in turns[:k]) == k
        assert str(probe.wanted) not in builtin_tokenizer.decode(probe.tail)


def test_the_documentation_names_every_family_and_its_rungs(repository: Path) -> None:
    """``docs/suites.md`` lists each family with the rungs that it has, and every register."""
    text = (repository / "docs/suites.md").read_text(encoding="utf-8")
    for name, family in FAMILIES.items():
        (row,) = [line for line in text.splitlines() if re.match(rf"\|[^|]*`{name}(@\w)?`", line)]
        listed = re.findall(r"(\d+) - (\d+)", row.split("|")[2])
        if family.rungs is not None:
            assert (str(family.rungs[0]), str(family.rungs[-1])) in listed
        assert ("all" in row.split("|")[4]) == family.whole or "of all" in row
    assert all(f"`{register}`" in text for register in REGISTERS)


DIGESTS = """
import hashlib, json, sys
from evalgate.backends.models import find_model
from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.tasks.haystack import Builder
from evalgate.tasks.suite import load_suite
found = {}
for name in sys.argv[1:]:
    builder = Builder(load_suite(name), ModelTokenizer(find_model("builtin:hybrid")), "main")
    for stream in reversed(builder.streams):
        if stream.longest <= 8192:
            haystack = builder.build(7, stream)
            body = [haystack.tokens, [probe._asdict() for probe in haystack.probes]]
            found[f"{name} {stream.index}"] = hashlib.sha256(json.dumps(body, default=str).encode()).hexdigest()
print(json.dumps(found))
"""
MANY = ("state", "reasoning", "ruler-13", "release", "needle", "retrieval")


def test_suites_are_the_same_in_any_process_and_order(builtin_tokenizer: Any) -> None:
    """Every stream up to 8,192 tokens of six suites, built here first to last and elsewhere last to first."""
    here = {}
    for name in MANY:
        builder = Builder(load_suite(name), builtin_tokenizer, "main")
        for stream in builder.streams:
            if stream.longest <= 8192:
                haystack = builder.build(7, stream)
                body = [haystack.tokens, [probe._asdict() for probe in haystack.probes]]
                here[f"{name} {stream.index}"] = hashlib.sha256(json.dumps(body, default=str).encode()).hexdigest()
    command = [sys.executable, "-c", DIGESTS, *reversed(MANY)]
    other = subprocess.run(command, capture_output=True, text=True, check=True)

    assert len(here) > 15
    assert json.loads(other.stdout) == here
