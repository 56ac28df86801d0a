"""The HTML report: what a reader sees, that it is whole, and that nothing in it acts."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from evalgate.errors import MismatchError, StorageError
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.profile import load_profile
from evalgate.gates.rules import judge
from evalgate.records import Outcome
from evalgate.reports import figures, html
from evalgate.reports.source import Source
from evalgate.reports.view import build_view

KINDS = ("pass", "block", "open", "error", "plain")

MakeSource = Callable[..., Source]


@pytest.fixture(scope="module")
def pages(report_cases: dict[str, Any]) -> dict[str, str]:
    """The rendered page of each kind of report."""
    return {name: html.render(build_view(*case)) for name, case in report_cases.items()}


class Node:
    """One element of a page: its tag, attributes, and children (text or nodes)."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag = tag
        self.attributes = attributes
        self.children: list[Node | str] = []

    @property
    def text(self) -> str:
        """Everything that a reader sees in the node, white space folded."""
        return " ".join("".join(self._pieces()).split())

    def _pieces(self) -> Iterator[str]:
        for child in self.children:
            yield from [child] if isinstance(child, str) else child._pieces()

    def all(self, *tags: str) -> list[Node]:
        """Every element below of these tags, or of any, in document order."""
        found = []
        for child in self.children:
            if isinstance(child, Node):
                found += [child] if not tags or child.tag in tags else []
                found += child.all(*tags)
        return found

    def __getitem__(self, name: str) -> Node:
        """The element below with this id."""
        return next(node for node in self.all() if node.attributes.get("id") == name)


class Page(HTMLParser):
    """A page as a tree; tags that do not close in order are refused."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Node("page", {})
        self.open = [self.root]
        self.feed(text)
        assert len(self.open) == 1, f"never closed: {self.open[-1].tag}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Hang a node below the open one."""
        assert len(attrs) == len({name for name, _ in attrs}), f"attribute given twice: {tag} {attrs}"
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in {"meta", "br", "path", "circle"}:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """As a start tag; drawings close their shapes at once."""
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        """Close the open node."""
        assert self.open[-1].tag == tag, f"{tag} closes {self.open[-1].tag}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        """Text of the open node."""
        self.open[-1].children.append(data)


def tree(page: str) -> Node:
    """The page as nodes."""
    return Page(page).root


@pytest.mark.parametrize(
    ("kind", "word"), [("pass", "PASS"), ("block", "BLOCK"), ("open", "INCONCLUSIVE"), ("error", "ERROR")]
)
def test_verdict_and_reason_come_first(
    pages: dict[str, str], report_cases: dict[str, Any], kind: str, word: str
) -> None:
    """The first heading is the verdict, and the next words are its reason."""
    [body] = tree(pages[kind]).all("main")
    headings = body.all("h1", "h2", "h3")
    reason = report_cases[kind].verdict.reason.removeprefix(f"{word}: ")

    assert word in headings[0].text
    assert body.text.index(word) < body.text.index(reason) < body.text.index("What changed")
    assert f"exit code {int(report_cases[kind].verdict.exit_code)}" in headings[0].text


def test_sections_come_in_reading_order(pages: dict[str, str]) -> None:
    """Verdict, changes, deciding cells, effective context, heat maps, bands, needles, validity, identity, policy."""
    main = tree(pages["block"])

    assert [node.attributes["id"] for node in main.all("section")] == [
        "verdict",
        "overview",
        "changes",
        "cells",
        "reach",
        "heat",
        "bands",
        "needles",
        "validity",
        "identity",
        "policy",
        "verify",
    ]


@pytest.mark.parametrize("kind", ["pass", "block", "open"])
def test_every_cell_shows_what_decides_it(pages: dict[str, str], report_cases: dict[str, Any], kind: str) -> None:
    """The bands table has k/n, interval, bar, boundary integers and the baseline of every cell of the verdict."""
    rows = {
        row.attributes.get("id"): row.text for row in tree(pages[kind])["bands"].all("tr") if row.attributes.get("id")
    }
    verdict = report_cases[kind].verdict

    assert len(rows) == len(verdict.cells) == 36
    for text, cell in zip(rows.values(), verdict.cells, strict=True):
        assert f"{cell.k}/{cell.n} {figures.percent(cell.k, cell.n)}" in text
        assert figures.interval(*cell.interval) in text
        assert f"90% pass ≥ {cell.pass_min} block ≤ {cell.block_max}" in text
        assert cell.status in text
        if cell.baseline is not None:
            assert f"{cell.baseline.k_baseline}/{cell.baseline.n}" in text
            assert f"{cell.baseline.b} pass ≤ {cell.baseline.breaks_max}" in text


def test_block_names_cells_and_losses(pages: dict[str, str]) -> None:
    """A BLOCK lists the cells that block, worst first, with losses, limits and the test's p-value."""
    rows = [row.text for row in tree(pages["block"])["cells"].all("tr")][1:]

    assert len(rows) == 4
    assert rows[0].startswith("multikey@8 · 8,192 · middle")
    assert "132/400 33.0%" in rows[0]
    assert "268 pass ≤ 6 block ≥" in rows[0]
    assert "< 1e-6" in rows[0]
    assert "by the bar and the baseline" in rows[0]


def test_open_cells_say_what_would_do(pages: dict[str, str], report_cases: dict[str, Any]) -> None:
    """An INCONCLUSIVE verdict shows the open cell and the seeds at which it would pass."""
    [row] = [row.text for row in tree(pages["open"])["cells"].all("tr")][1:]
    [cell] = [cell for cell in report_cases["open"].verdict.cells if cell.n_needed]

    assert "365/400" in row
    assert row.endswith(figures.count(cell.n_needed))


def test_error_puts_failed_checks_first(pages: dict[str, str]) -> None:
    """An ERROR says what is broken instead of recall, and claims no effective context."""
    broken = tree(pages["error"])["cells"].text

    assert "errors and missing trials are above" in broken
    assert "20 errors" in broken
    assert "not judged: the run is not valid" in tree(pages["error"])["reach"].text
    assert "none judged" in tree(pages["error"])["verdict"].text


def test_report_without_policy_approves_nothing(pages: dict[str, str]) -> None:
    """Without a verdict the page says so, and shows counts and intervals all the same."""
    first = tree(pages["plain"])["verdict"].text

    assert "NO VERDICT" in first
    assert "No policy was applied" in first
    assert "evalgate gate RUN --policy POLICY" in first
    assert "132/400 33.0%" in tree(pages["plain"])["bands"].text
    assert not re.search(r"\b(PASS|BLOCK|INCONCLUSIVE)\b", tree(pages["plain"])["bands"].text)


def test_changes_are_the_profile_and_nothing_else(pages: dict[str, str]) -> None:
    """The difference against the baseline is told setting by setting, and what is equal is named."""
    text = tree(pages["block"])["changes"].text

    assert "Only the compression profile: state.dtype fp32 → int8" in text
    assert "Same in both: weights, tokenizer, engine, suite and seeds and environment" in text


def test_heat_map_is_a_table_with_text_everywhere(pages: dict[str, str], report_cases: dict[str, Any]) -> None:
    """Ten depths by four lengths for each task and side; every cell has k/n, and they add up to the trials."""
    tables = tree(pages["block"])["heat"].all("table")
    asked = len(report_cases["block"].run.trials)

    assert len(tables) == 6
    for table in tables:
        cells = [cell.text for cell in table.all("td")]
        assert len(table.all("tr")) == 11
        assert len(cells) == 40
        assert all(re.fullmatch(r"[\d.<> ]+% \d+/\d+", cell) for cell in cells)
        assert sum(int(cell.rpartition("/")[2]) for cell in cells) == asked // 3


def test_losses_are_capped_and_the_rest_is_counted(pages: dict[str, str]) -> None:
    """At most fifty needles are listed, with position, depth, expected and answer; all are counted."""
    needles = tree(pages["block"])["needles"]
    rows = needles.all("table")[0].all("tr")[1:]

    assert len(rows) == 50
    assert "798 needles lost" in needles.text
    assert "50 are listed" in needles.text
    assert "748 are not" in needles.text
    assert re.search(r"middle \d+ \d+\.\d% [\d,]+–[\d,]+ amber tower", rows[0].text)
    assert "clustered" in needles.text


@pytest.mark.parametrize("kind", KINDS)
def test_page_loads_and_runs_nothing(pages: dict[str, str], kind: str) -> None:
    """No script, no handler, no style of an element's own, no address outside the page; the policy forbids them too."""
    page = tree(pages[kind])
    [style] = [node.text for node in page.all("style")]
    [policy] = [node.attributes["content"] for node in page.all("meta") if "http-equiv" in node.attributes]
    loading = {"script", "img", "iframe", "object", "embed", "link", "form", "base", "audio", "video", "image", "use"}
    acting = {"src", "style", "srcset", "action", "background", "poster", "xlink:href"}

    assert loading.isdisjoint(node.tag for node in page.all())
    for node in page.all():
        assert not [name for name in node.attributes if name.startswith("on") or name in acting]
    assert all(node.attributes["href"].startswith("#") for node in page.all("a"))
    assert "url(" not in style
    assert "@import" not in style
    digest = base64.b64encode(
        hashlib.sha256(pages[kind].partition("<style>")[2].partition("</style>")[0].encode()).digest()
    ).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_unique_and_links_resolve(pages: dict[str, str], kind: str) -> None:
    """Every id is there once, and every link leads to one."""
    page = tree(pages[kind])
    ids = [node.attributes["id"] for node in page.all() if "id" in node.attributes]

    assert len(ids) == len(set(ids))
    assert {node.attributes["href"][1:] for node in page.all("a")} <= set(ids)


def test_hostile_answers_are_shown_and_inert(pages: dict[str, str]) -> None:
    """Markup in an answer is text; control, invisible and direction-changing characters are written out."""
    text = tree(pages["block"])["needles"].text

    assert "</script><script>document.title='owned'</script>" in text
    assert "‹U+0000›‹U+001B›[31mred" in text
    assert "‹U+202E›gnp.exe ‹U+FEFF›‹U+200B› ‹U+DCFF› line⏎one⇥tab" in text
    assert "{{ 7*7 }} {% include '/etc/passwd' %}" in text
    assert "(+23,800 characters)" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u200b\ufeff\ud800-\udfff]", pages["block"])
    pages["block"].encode("utf-8")


def test_same_records_give_the_same_bytes(report_cases: dict[str, Any], pages: dict[str, str]) -> None:
    """A report holds no clock and no chance: rendered again it is the same."""
    assert html.render(build_view(*report_cases["block"])) == pages["block"]


def test_large_release_run_stays_small(make_report_source: MakeSource) -> None:
    """Twelve tasks at six lengths against a baseline, most needles lost: under a megabyte."""
    body = load_policy("serving-default@1.0.0").model_dump(mode="json", by_alias=True)
    body["looks"] = [100]
    body["cells"][0] |= {
        "task": [f"task{i}@8" for i in range(11)] + ["single"],
        "length": [4096 << i for i in range(6)],
    }
    policy = Policy.model_validate(body)
    base = make_report_source(policy, run_id="baseline")
    run = make_report_source(
        policy, run_id="run", profile="state-int8", answers={("middle",): {Outcome.WRONG: range(95)}}
    )
    verdict = judge(
        run.manifest,
        run.trials,
        policy,
        (base.manifest, base.trials),
        profile=load_profile("state-int8"),
        baseline_profile=load_profile("full"),
    )

    page = html.render(build_view(run, verdict, base))

    assert verdict.status == "BLOCK"
    assert page.count('class="block"') >= 72
    assert len(page.encode()) < html.MAX_BYTES


def test_page_is_written_whole(report_cases: dict[str, Any], pages: dict[str, str], tmp_path: Path) -> None:
    """Writing gives the rendered bytes and leaves nothing beside them; a folder that is not there is a StorageError."""
    view = build_view(*report_cases["pass"])
    html.write(view, tmp_path / "report.html")

    assert (tmp_path / "report.html").read_text(encoding="utf-8") == pages["pass"]
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(StorageError, match="cannot write"):
        html.write(view, tmp_path / "missing" / "report.html")


def test_verdict_of_another_run_is_refused(report_cases: dict[str, Any]) -> None:
    """A verdict and a run that do not belong together make no report."""
    with pytest.raises(MismatchError, match="the verdict is of run block, but run pass was given"):
        build_view(report_cases["pass"].run, report_cases["block"].verdict, None)


def test_templates_do_no_arithmetic(repository: Path) -> None:
    """Templates print what the view holds: no sums, no rounding, no counting."""
    for path in (repository / "reports" / "templates").glob("*.j2"):
        for code in re.findall(r"\{[{%](.*?)[%}]\}", path.read_text(encoding="utf-8"), re.DOTALL):
            bare = re.sub(r'"[^"]*"', "", code)
            assert not re.search(r"[-+*/|~<>]", bare), f"{path.name}: {code}"
