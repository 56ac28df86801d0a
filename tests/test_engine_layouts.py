"""Random models of the published shape, written in each layout, load to the logits that transformers computes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from fixtures_published import (
    SMALL,
    changed,
    published_tensors,
    random_model,
    untrained_model,
    write_published,
    write_published_in_outline,
)
from reference_model import FLOOR, error, forward
from safetensors.torch import save_file
from torch import Tensor

from evalgate.engine.config import parse_config
from evalgate.engine.llm import LLM
from evalgate.engine.loader import load_checkpoint
from evalgate.engine.weight_names import wanted_tensors

TOKENS = 200
KDA = "model.layers.1.self_attn"
MOE = "model.layers.1.block_sparse_moe"


class Case(NamedTuple):
    """transformers' model, what is true of a prompt, and how far off transformers is."""

    model: Any
    tokens: list[int]
    truth: Tensor
    """float64 ``[TOKENS, vocab]``, from the model's own tensors and the references, past the loader"""
    bar: float
    """Largest error allowed: twice transformers' own, or the floor."""

    def off_by(self, folder: Path) -> float:
        """Error of the engine's logits with the weights of a folder."""
        return error(LLM(load_checkpoint(folder), max_tokens=512, max_sessions=2).score(self.tokens), self.truth)


@pytest.fixture(scope="module")
def case() -> Case:
    """27 layers of which 7 attend to everything, experts in groups, two shared experts, slow decays."""
    model = random_model()
    tokens = torch.randint(5, SMALL["vocab_size"], (TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()
    tensors = {name.replace(".forget_gate.", "."): weight for name, weight in model.state_dict().items()}
    truth = forward(parse_config(changed(**SMALL), "config.json"), tensors, tokens)
    with torch.inference_mode():
        own = error(model(torch.tensor([tokens]), use_cache=False).logits[0], truth)
    return Case(model, tokens, truth, max(2 * own, FLOOR))


def published(case: Case, folder: Path) -> None:
    """As the 48B weights were published: shards, pieces, bfloat16 with a few tensors in float32."""
    write_published(folder, published_tensors(case.model))


def flat_decay(case: Case, folder: Path) -> None:
    """As published, with one number of A_log a head and no further dimensions."""
    tensors = published_tensors(case.model)
    write_published(folder, {name: x.flatten() if name.endswith("A_log") else x for name, x in tensors.items()})


def one_file(case: Case, folder: Path) -> None:
    """As transformers saves it, in one file."""
    case.model.save_pretrained(folder)


def saved_shards(case: Case, folder: Path) -> None:
    """As transformers saves it, in shards."""
    case.model.save_pretrained(folder, max_shard_size="1MB")
    assert (folder / "model.safetensors.index.json").is_file()


def in_memory(case: Case, folder: Path) -> None:
    """The tensors that transformers has in memory, under their names there: fused convolutions, stacked experts."""
    case.model.config.save_pretrained(folder)
    save_file({name: x.contiguous() for name, x in case.model.state_dict().items()}, folder / "model.safetensors")


LAYOUTS = [published, flat_decay, one_file, saved_shards, in_memory]


@pytest.mark.parametrize("write", LAYOUTS, ids=lambda write: write.__name__)
def test_each_layout_loads_to_the_same_logits(case: Case, write: Callable[[Case, Path], None], tmp_path: Path) -> None:
    """At every position of a prompt past three chunks, at most twice transformers' own error."""
    write(case, tmp_path)
    assert case.off_by(tmp_path) <= case.bar


def swap(tensors: dict[str, Tensor], one: str, other: str) -> None:
    """Exchange two tensors."""
    tensors[one], tensors[other] = tensors[other], tensors[one]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda t: swap(t, f"{MOE}.experts.2.w1.weight", f"{MOE}.experts.2.w3.weight"), id="w1-w3"),
        pytest.param(lambda t: swap(t, f"{MOE}.experts.0.w2.weight", f"{MOE}.experts.7.w2.weight"), id="expert-order"),
        pytest.param(lambda t: swap(t, f"{KDA}.q_conv1d.weight", f"{KDA}.k_conv1d.weight"), id="conv-q-k"),
        pytest.param(lambda t: swap(t, f"{KDA}.k_conv1d.weight", f"{KDA}.v_conv1d.weight"), id="conv-k-v"),
        pytest.param(lambda t: t[f"{MOE}.gate.e_score_correction_bias"].zero_(), id="router-bias"),
        pytest.param(lambda t: t.update({f"{KDA}.A_log": t[f"{KDA}.A_log"].flip(2)}), id="decay-of-heads"),
        pytest.param(lambda t: t[f"{KDA}.dt_bias"].zero_(), id="dt-bias"),
    ],
)
def test_the_comparison_sees_a_layout_misread_in_one_layer(
    case: Case, change: Callable[[dict[str, Tensor]], object], tmp_path: Path
) -> None:
    """What a loader could get wrong without an error moves the logits far past the bar."""
    tensors = published_tensors(case.model)
    change(tensors)
    write_published(tmp_path, tensors)
    assert case.off_by(tmp_path) > 100 * case.bar


def test_the_published_checkpoint_opens_at_full_size(tmp_path: Path) -> None:
    """Every tensor of the 48B model, as transformers builds it, is expected under its name and in its shape."""
    with torch.device("meta"):
        tensors = published_tensors(untrained_model())
    checkpoint = load_checkpoint(write_published_in_outline(tmp_path, tensors))
    assert len(tensors) == 20_493
    assert checkpoint.parameters == sum(x.numel() for x in tensors.values()) == 49_122_681_728
    zeros = checkpoint.tensors.read("model.layers.26.self_attn.kv_b_proj.weight", dtype=torch.bfloat16)
    assert zeros.shape == (32 * 256, 512)
    assert not zeros.any()


CHILD = """
import sys
from pathlib import Path
import torch
from evalgate.engine.loader import load_checkpoint
from evalgate.engine.weight_names import wanted_tensors
from evalgate.engine.model import HybridModel

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

before = status("VmRSS")
checkpoint = load_checkpoint(Path(sys.argv[1]))
model = HybridModel(checkpoint.config, checkpoint.tensors, getattr(torch, sys.argv[2]))
print(checkpoint.parameters, status("VmHWM") - before)
"""
LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "linear_attn_config": {
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3],
        "head_dim": 128,
        "num_heads": 8,
        "short_conv_kernel_size": 4,
    },
    "moe_intermediate_size": 512,
    "num_experts": 16,
    "num_hidden_layers": 4,
    "vocab_size": 8192,
}
"""122 million weights, none of whose matrices is more than a seventh of them, so that a second copy stands out."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published checkpoint of 245 MB in bfloat16; what its weights are does not matter."""
    config = parse_config(changed(**(SMALL | LARGE)), "config.json")
    tensors = {}
    for wanted in wanted_tensors(config):
        for name, shape in wanted.pieces or [(wanted.name, wanted.shape)]:
            stored = name if ".layers.0." in name else name.replace(".mlp.", ".block_sparse_moe.")
            tensors[stored] = torch.full(shape, 0.01, dtype=torch.bfloat16)
    return write_published(tmp_path_factory.mktemp("large"), tensors, **LARGE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_loading_makes_no_second_copy(large: Path, repository: Path, dtype: torch.dtype) -> None:
    """Peak memory grows by the weights in the dtype asked for and a fifth: one matrix of the file on its way."""
    command = [sys.executable, "-c", CHILD, str(large), str(dtype).removeprefix("torch.")]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=repository)
    parameters, growth = map(int, result.stdout.split())
    weights = parameters * dtype.itemsize
    assert 0.95 * weights < growth < 1.2 * weights
