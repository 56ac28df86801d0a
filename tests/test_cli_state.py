"""`evalgate state`: what it prints and writes, and what it refuses before the first token."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures_engine import TINY

from evalgate.backends.models import find_model
from evalgate.errors import ExitCode
from evalgate.runner.state import StateRequest, see_state
from evalgate.state_record import StateRecord

Evalgate = Callable[..., Any]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two lengths so short that a byte tokenizer fits them; eight keys in one stream, a lone needle in another."""
    path = tmp_path_factory.mktemp("suites") / "near.yaml"
    path.write_text(
        "schema_version: 1\nname: near\nversion: 1.0.0\nlengths: [512, 1024]\ntasks: [single, multikey@8]\n"
        "bands: {front: [0, 0.3333], middle: [0.3333, 0.6667], back: [0.6667, 1]}\narms: [default]\n"
        "haystack: {source: grammar, register: report, language: en, data_class: public}\n"
        "streams: {mode: per-task, density_cap: 0.4}\ndecoding: {max_tokens: 12, temperature: 0}\n",
        encoding="utf-8",
    )
    return path


def test_json_and_page_tell_the_same(evalgate: Evalgate, suite: Path, tmp_path: Path) -> None:
    """The whole record on standard output, the page where it was asked for, and nothing else anywhere."""
    out = tmp_path / "new" / "state.html"
    words = ("--suite", suite, "--profiles", "state-int8,state-rank-4@1.0.0,state-int8", "--length", 512)
    ended = evalgate("state", "builtin:hybrid", *words, "--out", out, "--json")
    body = json.loads(ended.out)
    file = body.pop("file")
    record = StateRecord.model_validate(body)

    assert (ended.code, file) == (0, str(out))
    assert "tokens" in ended.err
    assert [layer.layer for layer in record.layers] == [0, 1, 2]
    assert [codec.profile.name for codec in record.codecs] == ["state-int8", "state-rank-4"]
    assert [codec.form for codec in record.codecs] == ["int8, every 64 tokens", "rank 4, once, at the fork"]
    assert (record.length, record.positions[-1], record.stream) == (512, 448, 1)
    assert record.facts >= 8
    assert record.nbytes == 3 * 4 * 64 * 64 * 4
    assert record.codecs[0].nbytes == 3 * 4 * (64 * 64 + 64 * 4)
    page = out.read_text(encoding="utf-8")
    assert f"After {record.positions[-1]} tokens" in page
    assert "state-rank-4" in page
    assert [path.name for path in out.parent.iterdir()] == ["state.html"]


def test_text_tells_layers_profiles_and_the_page(evalgate: Evalgate, suite: Path) -> None:
    """Without --json a table of layers, one of profiles, and where more is to be had."""
    ended = evalgate("state", "builtin:hybrid", "--suite", suite, "--length", 512, "--profiles", "state-int4")

    assert ended.code == 0
    for word in ("layer 2", "state-int4", "27.0 KiB", "is left of what the front third", "--out"):
        assert word in ended.out


def test_every_profile_that_can_act_is_measured_largest_first(suite: Path) -> None:
    """By default all released profiles that compress the state, and only those that this model's states allow."""
    record = see_state(StateRequest(model="builtin:hybrid", suite=str(suite), length=512, seed_set="all"))
    sizes = [codec.nbytes for codec in record.codecs]

    assert {codec.profile.name for codec in record.codecs} >= {"state-bf16", "state-int8", "state-int4", "state-rank-1"}
    assert not [codec.profile.name for codec in record.codecs if codec.profile.name.startswith(("kv", "full"))]
    assert sizes == sorted(sizes, reverse=True)
    assert (record.seed_set, record.stream) == ("all", 1)


def test_profile_that_a_model_cannot_do_is_left_out_or_refused(
    evalgate: Evalgate, tmp_path: Path, suite: Path, narrow_model: Path
) -> None:
    """A rank as large as the state is no compression: skipped among all profiles, refused where it was named."""
    record = see_state(StateRequest(model=str(narrow_model), suite=str(suite), length=512))
    ended = evalgate(
        "state", narrow_model, "--suite", suite, "--profiles", "state-rank-8", "--out", tmp_path / "x.html"
    )

    names = [codec.profile.name for codec in record.codecs]
    assert "state-rank-7" in names
    assert "state-rank-8" not in names
    assert ended.code == ExitCode.REFUSED
    assert "state-rank-8@1.0.0" in ended.err
    assert "expected 1 to 7" in ended.err
    assert not (tmp_path / "x.html").exists()


@pytest.fixture(scope="module")
def narrow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """States of 8 x 8."""
    return save(tmp_path_factory.mktemp("narrow"), linear_head_dim=8, linear_num_heads=4)


@pytest.fixture(scope="module")
def attention_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a recurrent state."""
    return save(tmp_path_factory.mktemp("attention"), layer_types=["full_attention"] * 4)


def save(folder: Path, **changes: object) -> Path:
    """A tiny random model of another shape, with the embedded models' tokenizer."""
    from transformers import KimiLinearConfig, KimiLinearForCausalLM

    KimiLinearForCausalLM(KimiLinearConfig(**(TINY | {"vocab_size": 1812} | changes))).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(find_model("builtin:hybrid") / name, folder)
    return folder


def test_model_without_a_state_is_refused(evalgate: Evalgate, attention_model: Path) -> None:
    """Before the weights are read, by name."""
    weights = attention_model / "model.safetensors"
    weights.rename(attention_model / "gone")
    ended = evalgate("state", attention_model, "--json")
    weights.with_name("gone").rename(weights)

    assert ended.code == ExitCode.REFUSED
    assert "no linear-attention (KDA) layer" in ended.err
    assert json.loads(ended.out)["error"]["type"] == "UnsupportedError"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["builtin:hybird"], 2, "did you mean hybrid"),
        (["no-such-folder"], 4, "no such checkpoint folder"),
        (["builtin:hybrid", "--suite", "demmo"], 2, "did you mean demo"),
        (["builtin:hybrid", "--length", "77"], 2, "choose one of 1024"),
        (["builtin:hybrid", "--profiles", "state-int9"], 2, "did you mean state-int"),
        (["builtin:hybrid", "--profiles", "state-int8,"], 2, "unknown profile ''"),
        (["builtin:hybrid", "--profiles", "kv-int8"], 2, "leaves the recurrent state as it is"),
        (["builtin:hybrid", "--seed-set", "a/b"], 2, "without blanks or slashes"),
        (["builtin:hybrid", "--seed-set", "train"], 2, "reserved for training"),
        (["builtin:hybrid", "--out", "{file}/page.html"], 4, "a file stands where a folder is needed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_told_before_the_work(
    evalgate: Evalgate, tmp_path: Path, words: list[str], code: int, told: str
) -> None:
    """Each with its own exit code and the next step, no traceback, and no token streamed."""
    file = tmp_path / "file"
    file.write_text("kept")
    ended = evalgate("state", *(word.format(file=file) for word in words))

    assert (ended.code, ended.out) == (code, "")
    assert told in ended.err
    assert "Traceback" not in ended.err
    assert "tok/s" not in ended.err
    assert file.read_text() == "kept"


def test_page_that_cannot_be_written_is_an_error(evalgate: Evalgate, suite: Path, tmp_path: Path) -> None:
    """A folder in the page's place is told, and stays."""
    (tmp_path / "here.html").mkdir()
    words = ("--suite", suite, "--length", 512, "--profiles", "state-int8")
    ended = evalgate("state", "builtin:hybrid", *words, "--out", tmp_path / "here.html")

    assert ended.code == ExitCode.ERROR
    assert "a folder stands where a file is needed" in ended.err
    assert list(tmp_path.iterdir()) == [tmp_path / "here.html"]


def test_context_longer_than_the_window_is_refused(evalgate: Evalgate, tmp_path: Path) -> None:
    """The model's own limit, with the number that fits."""
    ended = evalgate("state", save(tmp_path, max_position_embeddings=512), "--suite", "demo")

    assert ended.code == ExitCode.REFUSED
    assert "1024 tokens asked for, at most 512 fit" in ended.err


def test_help_is_light_and_names_the_documentation(repository: Path) -> None:
    """The help loads no engine, and the page that it names is there."""
    code = (
        "import sys\nfrom evalgate.cli import main\nsys.argv = ['evalgate', 'state', '--help']\ntry:\n    main()\n"
        "except SystemExit:\n    pass\nprint('torch' in sys.modules)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert told.endswith("False\n")
    assert "docs/state.md" in told
    assert (repository / "docs" / "state.md").is_file()
