"""Weights: every name they come under, and every way in which they can be wrong, named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from evalgate.engine.loader import load_checkpoint
from evalgate.engine.model import HybridModel
from evalgate.engine.weight_files import weights_digest
from evalgate.errors import CheckpointError, UnsupportedError

KDA = "model.layers.0.self_attn"


@pytest.fixture
def rewrite(tiny_models: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """``rewrite(shape, change)``: a copy of a tiny checkpoint with its dict of tensors changed in place."""

    def make(shape: str, change: Callable[[dict[str, Tensor]], object]) -> Path:
        folder = tmp_path / "copy"
        shutil.copytree(tiny_models[shape], folder, dirs_exist_ok=True)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")
        return folder

    return make


@pytest.mark.parametrize("shape", ["hybrid", "experts"])
def test_names_in_memory_load_like_names_on_disk(shape: str, tiny_models: dict[str, Path], tmp_path: Path) -> None:
    """Fused and split tensors, ``mlp`` and ``block_sparse_moe``, give the same weights."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_models[shape])
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, tmp_path / "model.safetensors")
    shutil.copy(tiny_models[shape] / "config.json", tmp_path)
    on_disk, in_memory = load_checkpoint(tiny_models[shape]), load_checkpoint(tmp_path)
    assert on_disk.tensors.keys() == in_memory.tensors.keys()
    for name, tensor in on_disk.tensors.items():
        assert torch.equal(tensor, in_memory.tensors[name]), name
    assert on_disk.parameters == sum(p.numel() for p in model.state_dict().values())


def test_shards_load_like_one_file(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    """An index of shards gives the same weights; its digest covers every shard."""
    tensors = load_file(tiny_models["hybrid"] / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[:20], "b.safetensors": names[20:]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, tmp_path / file)
    index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copy(tiny_models["hybrid"] / "config.json", tmp_path)
    loaded = load_checkpoint(tmp_path)
    for name, tensor in load_checkpoint(tiny_models["hybrid"]).tensors.items():
        assert torch.equal(tensor, loaded.tensors[name]), name
    before = weights_digest(tmp_path)
    save_file({name: tensors[name] * 2 for name in shards["b.safetensors"]}, tmp_path / "b.safetensors")
    assert weights_digest(tmp_path) != before
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"b\.safetensors is named"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(f"{KDA}.A_log"), rf"tensor {KDA}\.A_log is missing, expected shape \[1, 1, 2, 1\]"),
        (lambda t: t.pop(f"{KDA}.k_conv1d.weight"), r"k_conv1d\.weight is missing, expected shape \[32, 1, 4\]"),
        (lambda t: t.pop("lm_head.weight"), r"lm_head\.weight is missing"),
        (lambda t: t.update({"model.layers.9.norm": torch.zeros(1)}), r"does not call for model\.layers\.9\.norm"),
        (
            lambda t: t.update({f"{KDA}.q_proj.weight": torch.zeros(32, 63)}),
            r"q_proj\.weight has shape \[32, 63\], expected \[32, 64\]",
        ),
        (
            lambda t: t.update({f"{KDA}.v_conv1d.weight": torch.zeros(32, 1, 3)}),
            r"v_conv1d\.weight has shape \[32, 1, 3\], expected \[32, 1, 4\]",
        ),
        (
            lambda t: t.update({f"{KDA}.A_log": torch.zeros(2, 1)}),
            r"A_log has shape \[2, 1\], expected \[1, 1, 2, 1\]",
        ),
        (
            lambda t: t.update({f"{KDA}.conv1d.weight": torch.zeros(96, 1, 4)}),
            rf"does not call for {KDA}\.k_conv1d\.weight, {KDA}\.q_conv1d\.weight, {KDA}\.v_conv1d\.weight;",
        ),
        (
            lambda t: t.update({f"model.layers.{n}.norm": torch.zeros(1) for n in range(4, 9)}),
            r"does not call for model\.layers\.4\.norm, .* and 2 more;",
        ),
        (
            lambda t: t.update({f"{KDA}.forget_gate.A_log": torch.zeros(1, 1, 2, 1)}),
            r"A_log and .*A_log are one tensor under two names",
        ),
    ],
    ids=[
        *("missing", "missing-piece", "missing-head", "extra", "shape", "piece-shape", "decay-shape"),
        *("pieces-beside-the-whole", "many-extra", "two-names"),
    ],
)
def test_wrong_tensors_are_named(
    rewrite: Callable[..., Path], change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    """The tensor, what was found and what was expected are in the message."""
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(rewrite("hybrid", change))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=["nan", "inf", "minus-inf"])
@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ("hybrid", "model.norm.weight"),
        ("hybrid", f"{KDA}.v_conv1d.weight"),
        ("experts", "model.layers.2.block_sparse_moe.experts.5.w3.weight"),
        ("experts", "model.layers.2.block_sparse_moe.gate.e_score_correction_bias"),
    ],
)
def test_one_weight_that_is_not_finite_is_named(
    rewrite: Callable[..., Path], shape: str, name: str, value: float
) -> None:
    """Wherever it is, fused with others or by itself, no model is built with it."""
    checkpoint = load_checkpoint(rewrite(shape, lambda t: t[name].view(-1)[-1:].fill_(value)))
    with pytest.raises(CheckpointError, match=rf"{re.escape(name)} holds NaN or infinity"):
        HybridModel(checkpoint.config, checkpoint.tensors, torch.float32)


def test_weights_that_float32_cannot_hold_are_named(rewrite: Callable[..., Path]) -> None:
    """A number that is finite in the file and not where it is used is no better."""
    folder = rewrite("hybrid", lambda t: t.update({"model.norm.weight": torch.full((64,), 1e60, dtype=torch.float64)}))
    checkpoint = load_checkpoint(folder)
    assert checkpoint.tensors["model.norm.weight"].dtype == torch.float64
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight holds NaN or infinity"):
        checkpoint.tensors.read("model.norm.weight", dtype=torch.float32)


def test_files_that_change_after_they_were_opened_are_errors(rewrite: Callable[..., Path]) -> None:
    """Weights are read when a model takes them; a file that was replaced or lost by then is not half believed."""
    folder = rewrite("hybrid", dict.copy)
    checkpoint = load_checkpoint(folder)
    rewrite("hybrid", lambda t: t.update({"model.norm.weight": torch.ones(32)}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has changed"):
        HybridModel(checkpoint.config, checkpoint.tensors, torch.float32)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        HybridModel(checkpoint.config, checkpoint.tensors, torch.float32)


def test_missing_expert_is_named(rewrite: Callable[..., Path]) -> None:
    """One expert's matrix in 24 that is not there is found."""
    name = "model.layers.1.block_sparse_moe.experts.5.w3.weight"
    with pytest.raises(CheckpointError, match=r"experts\.5\.w3\.weight is missing"):
        load_checkpoint(rewrite("experts", lambda t: t.pop(name)))


def test_integer_weights_are_refused(rewrite: Callable[..., Path]) -> None:
    """A quantised checkpoint is not silently read as if its codes were weights."""
    with pytest.raises(UnsupportedError, match=r"model\.norm\.weight is stored as I8"):
        load_checkpoint(rewrite("hybrid", lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)})))


@pytest.mark.parametrize("left", [0, 4, 300, -64])
def test_truncated_file_is_a_broken_checkpoint(left: int, tiny_models: dict[str, Path], tmp_path: Path) -> None:
    """A download that stopped anywhere, header or weights, is named and never half read."""
    shutil.copytree(tiny_models["hybrid"], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is corrupt or truncated"):
        load_checkpoint(tmp_path)


Change = Callable[[Path, dict[str, str]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda folder, _: save_file(
                {"model.norm.weight": torch.ones(64), f"{KDA}.A_log": torch.ones(1, 1, 2, 1)}, folder / "c.safetensors"
            ),
            r"tensor model\.norm\.weight is in b\.safetensors and in c\.safetensors",
            id="twice",
        ),
        pytest.param(
            lambda _, index: index.update({"model.norm.weight": "a.safetensors"}),
            r"b\.safetensors: holds tensor model\.norm\.weight, which .*index\.json has in a\.safetensors",
            id="elsewhere",
        ),
        pytest.param(
            lambda _, index: index.pop("model.norm.weight"),
            r"b\.safetensors: holds tensor model\.norm\.weight, which .*index\.json has in no file",
            id="not-in-the-index",
        ),
        pytest.param(
            lambda _, index: index.update({"model.layers.9.norm": "b.safetensors"}),
            r"has tensor model\.layers\.9\.norm in b\.safetensors, which does not hold it",
            id="not-in-the-shard",
        ),
        pytest.param(
            lambda folder, _: (folder / "b.safetensors").unlink(), r"b\.safetensors is named", id="no-such-shard"
        ),
        pytest.param(
            lambda _, index: index.update({"model.norm.weight": "../b.safetensors"}),
            r"'\.\./b\.safetensors'; expected the name of a file beside",
            id="outside",
        ),
        pytest.param(lambda _, index: index.update({"a": 1}), "tensor a is in 1; expected the name", id="no-name"),
        pytest.param(lambda _, index: index.clear(), "no weight_map found", id="empty"),
    ],
)
def test_shards_that_disagree_with_their_index_are_errors(
    tiny_models: dict[str, Path], tmp_path: Path, change: Change, message: str
) -> None:
    """A tensor in two shards, in another than the index says, or in none is named with the files."""
    tensors = load_file(tiny_models["hybrid"] / "model.safetensors")
    shutil.copy(tiny_models["hybrid"] / "config.json", tmp_path)
    held = {"b.safetensors": ["model.norm.weight", "lm_head.weight"], "c.safetensors": [f"{KDA}.A_log"]}
    held["a.safetensors"] = sorted(tensors.keys() - {name for names in held.values() for name in names})
    for file, names in held.items():
        save_file({name: tensors[name] for name in names}, tmp_path / file)
    index = {name: file for file, names in held.items() for name in names}
    change(tmp_path, index)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": []}'])
def test_index_that_says_nothing_is_a_broken_checkpoint(
    tmp_path: Path, text: str, tiny_models: dict[str, Path]
) -> None:
    """No JSON, no object, or no map of names: the file is named."""
    shutil.copy(tiny_models["hybrid"] / "config.json", tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        load_checkpoint(tmp_path)


def test_folder_without_weights(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    """A folder with only a config says which files it looked for."""
    shutil.copy(tiny_models["hybrid"] / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        load_checkpoint(tmp_path)


def test_tied_head_may_be_absent(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    """With tied embeddings a checkpoint without a head uses the embedding."""
    from evalgate.engine.llm import LLM

    shutil.copytree(tiny_models["hybrid"], tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    body = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(body | {"tie_word_embeddings": True}))
    model = LLM.open(tmp_path).model
    assert torch.equal(model.head, model.embedding)
