"""A suite: which tasks, lengths, bands and arms are asked, as a versioned document.

A suite knows no model, no tokenizer and no threshold.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import itertools
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from evalgate.data_class import DataClass
from evalgate.errors import UnknownNameError, UnsupportedError, nearest
from evalgate.records import Cell
from evalgate.tasks.corpus import Corpus, corpus_of, from_dataset, from_folder
from evalgate.tasks.families import FAMILIES
from evalgate.tasks.items import Items, read_items
from evalgate.tasks.phrases import Language
from evalgate.tasks.placement import Grid, Placement, Uniform
from evalgate.tasks.plugins import Plugin, plugin, plugin_names
from evalgate.tasks.registers import RegisterName
from evalgate.tasks.task import Task
from evalgate.versioned import Document, Library

ARMS = ("default", "isolated", "turns", "cold", "chunked", "warm", "resumed", "load")


def _tasks(names: list[str]) -> list[str]:
    for name in names:
        try:
            Task(name)
        except (UnknownNameError, UnsupportedError, ValueError) as error:
            raise ValueError(str(error)) from error
    return _distinct(names)


def _distinct(items: list[str]) -> list[str]:
    if len(set(items)) < len(items):
        raise ValueError(f"{items} names something twice")
    return items


def _ascending(lengths: list[int]) -> list[int]:
    if any(a >= b for a, b in itertools.pairwise(lengths)):
        raise ValueError(f"lengths {lengths} must ascend")
    return lengths


def _tiled(bands: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """In order of depth: a mapping's order is no part of its digest, so it must not matter."""
    ordered = dict(sorted(bands.items(), key=lambda band: band[1]))
    edges = list(ordered.values())
    whole = edges[0][0] == 0 and edges[-1][1] == 1
    if not whole or any(a[1] != b[0] for a, b in itertools.pairwise(edges)) or any(lo >= hi for lo, hi in edges):
        raise ValueError(f"bands {bands} must tile [0, 1] without gaps or overlaps")
    return ordered


Length = Annotated[int, Field(ge=1, le=16_777_216)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Grammar(_Section):
    """Filler is written by the grammar."""

    source: Literal["grammar"]
    register_: RegisterName = Field(alias="register")
    language: Language
    data_class: DataClass

    def read(self) -> Corpus | None:
        """No documents."""
        return None


class _Documents(_Section):
    language: Language
    """Of the needles and questions."""
    data_class: DataClass

    @property
    def register_(self) -> RegisterName:
        """The look of needles, and what the text is called; the filler is the documents'."""
        return "noise"


class Folder(_Documents):
    """Filler is what the files of a folder say: .txt, .md, .jsonl (field ``text``) and .pdf."""

    source: Literal["folder"]
    path: str

    def read(self) -> Corpus:
        """The documents; raises RefusedError or UnsupportedError where they cannot be read."""
        return from_folder(self.path)


class Dataset(_Documents):
    """Filler is a column of a Hugging Face dataset."""

    source: Literal["dataset"]
    path: str
    """Id, or a folder that ``save_to_disk`` wrote."""
    split: str = "train"
    column: str = "text"

    def read(self) -> Corpus:
        """The documents; raises RefusedError where they cannot be read."""
        return from_dataset(self.path, self.split, self.column)


class Source(_Documents):
    """Filler is what an installed package gives."""

    source: Literal["package"]
    name: str
    """Of its entry point in group ``evalgate.haystacks``: called with the options, it gives documents."""
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)

    def read(self) -> Corpus:
        """The documents; raises UnknownNameError or UnsupportedError where no package gives them."""
        found = plugin("haystacks", self.name)
        if found is None:
            raise UnknownNameError(f"unknown haystack {self.name!r}{nearest(self.name, plugin_names('haystacks'))}")
        where = f"haystack {self.name!r} of package {found.package}"
        try:
            texts = [str(text) for text in found.value(**self.options)]
        except Exception as error:  # another package's code may raise anything
            raise UnsupportedError(f"{where} gave no documents ({error!r}); check its options") from error
        return corpus_of(texts, where)


Haystack = Annotated[Grammar | Folder | Dataset | Source, Field(discriminator="source")]


class Questions(_Section):
    """The user's own questions, which family ``ownqa`` asks; of the haystack's data class."""

    path: str
    """JSON lines with ``text``, ``question`` and ``answers``."""

    def read(self) -> Items:
        """The questions; raises RefusedError where they cannot be read."""
        return read_items(self.path)


class Streams(_Section):
    """Which tasks and lengths may share a haystack."""

    mode: Literal["shared", "per-task"]
    density_cap: float = Field(gt=0, le=0.5)


class Decoding(_Section):
    """How answers are generated."""

    max_tokens: int = Field(ge=4, le=4096)
    """The answer's, without reasoning."""
    temperature: Literal[0]
    thinking_tokens: int = Field(default=0, ge=0)
    """Reasoning before the answer; it counts in the length."""
    stop: list[Annotated[str, Field(min_length=1)]] | None = None
    """Texts that end an answer after its reasoning; None: a line break under the base template, else none."""


class Prompting(_Section):
    """What stands around the text."""

    template: Literal["chat", "base"] = "chat"
    """The model's own chat template, or none: a text that ends where the answer begins."""
    system: str | None = None
    answer_prefix: str = ""
    """The beginning of the answer, given and never scored."""


GUARD = "lm_eval:"
"""Before a task of lm-eval: what its cell is called."""
GUARD_SCORER = "lm_eval"
"""What judged a guard's trial: the task's own metric."""


class Guarding(_Section):
    """Tasks of lm-evaluation-harness that are asked beside the needles, each as the cell ``lm_eval:TASK``."""

    tasks: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1), AfterValidator(_distinct)]
    include_path: str | None = None
    """A folder of tasks of your own."""
    num_fewshot: int = Field(default=0, ge=0, le=64)
    chat: bool = False
    """Whether they are asked through the model's chat template."""
    metric: str | None = None
    """Which of a task's metrics counts; it must be 0 or 1 for every document."""


class Suite(Document):
    """``tasks/suites/NAME/VERSION.yaml``"""

    lengths: Annotated[
        list[Annotated[int, Field(ge=1, le=16_777_216)]], Field(min_length=1), AfterValidator(_ascending)
    ]
    tasks: Annotated[list[str], Field(min_length=1), AfterValidator(_tasks)]
    bands: Annotated[dict[str, tuple[float, float]], Field(min_length=1), AfterValidator(_tiled)]
    arms: Annotated[list[Literal[ARMS]], Field(min_length=1), AfterValidator(_distinct)]  # type: ignore[valid-type]  # mypy does not expand a constant tuple
    haystack: Haystack
    streams: Streams
    decoding: Decoding
    placement: Placement = Uniform()
    prompting: Prompting = Prompting()
    questions: Questions | None = None
    lm_eval: Guarding | None = None

    @model_validator(mode="after")
    def _depths_in_every_band(self) -> Suite:
        if isinstance(self.placement, Grid):
            for band, (low, high) in self.bands.items():
                if not any(low <= depth < high or depth == high == 1.0 for depth in self.placement.depths):
                    raise ValueError(f"placement.depths: none of {self.placement.depths} lies in band {band!r}")
        return self

    @model_validator(mode="after")
    def _questions_are_asked(self) -> Suite:
        if self.own_tasks and self.questions is None:
            raise ValueError(f"task {self.own_tasks[0]!r} asks your own questions; name their file as questions.path")
        if self.questions is not None and not self.own_tasks:
            raise ValueError(f"questions {self.questions.path!r} are asked by no task; add one such as 'ownqa@8'")
        return self

    def thinking(self, tokens: int | None) -> Suite:
        """The suite with other room for reasoning, and so with another digest; None: as it is."""
        if tokens in (None, self.decoding.thinking_tokens):
            return self
        return self.model_copy(update={"decoding": self.decoding.model_copy(update={"thinking_tokens": tokens})})

    @property
    def packages(self) -> dict[str, str]:
        """Other packages that its tasks and its haystack are of -> their versions."""
        families = {Task(task).family.name for task in self.tasks}
        names = [plugin("families", name) for name in sorted(families - FAMILIES.keys())]
        if isinstance(self.haystack, Source):
            names.append(plugin("haystacks", self.haystack.name))
        found = {each.package: each.version for each in names if isinstance(each, Plugin)}
        return found | ({} if self.lm_eval is None else {"lm_eval": importlib.metadata.version("lm_eval")})

    @property
    def own_tasks(self) -> list[str]:
        """Tasks that ask the user's own questions."""
        return [task for task in self.tasks if Task(task).family.own_items]

    @property
    def stops(self) -> list[str]:
        """Texts that end an answer."""
        given = self.decoding.stop
        if given is None:
            return ["\n"] if self.prompting.template == "base" else []
        return given

    def guards(self) -> list[Cell]:
        """The cells of lm-eval's tasks, at the shortest length: they are short."""
        tasks = [] if self.lm_eval is None else self.lm_eval.tasks
        return [Cell(GUARD + task, self.lengths[0], "all", self.arms[0]) for task in tasks]

    def cells(self) -> list[Cell]:
        """Every cell that the suite asks."""
        return [
            Cell(task, length, band, arm)
            for arm in self.arms
            for task in self.tasks
            for length in self.lengths
            for band in Task(task).family.asked(self.bands)
        ] + self.guards()


LIBRARY = Library("suite", Path(str(importlib.resources.files("evalgate.tasks"))) / "suites")


def load_suite(ref: str) -> Suite:
    """Load a suite by ``name``, ``name@version`` or file, written or compiled; raises as :meth:`Library.load`."""
    if ref.endswith(".parquet"):
        from evalgate.tasks.compiled import Compiled

        return Compiled(Path(ref)).suite
    name = ref.partition("@")[0]
    given = None if name in LIBRARY.names() or "/" in ref else plugin("suites", name)
    library = LIBRARY if given is None else Library("suite", Path(str(given.value)))
    return library.load(Suite, ref)


def band_of(depth: float, bands: dict[str, tuple[float, float]]) -> str:
    """The band that holds ``depth``: intervals are [lo, hi), the last one closed."""
    for name, (_, high) in bands.items():
        if depth < high:
            return name
    return next(reversed(bands))
