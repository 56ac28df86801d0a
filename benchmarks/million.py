"""A context of 1,048,576 tokens through a KDA-only stack of the embedded shape: seconds, memory growth, survival.

    python benchmarks/million.py

Random weights with slow decays; one prefill, then a greedy answer.  Writes ``benchmarks/million.json`` and exits 1 when
memory grew by more than 2 GiB or the answer is not finite.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
from prefill import cpu_name, reset_peak, resident, versions

from evalgate.engine.llm import LLM

TOKENS = 2**20
GROWTH_TARGET_MIB = 2048
OUT = Path(__file__).with_suffix(".json")


def main() -> int:
    """Prefill once and write what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory() as folder:
        llm = LLM.open(save_model(Path(folder), asked.tokens), max_sessions=2)
    found = measure(llm, asked.tokens)
    met = found["peak_growth_mib"] <= GROWTH_TARGET_MIB and bool(found["survived"])
    body = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "threads": asked.threads,
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "python": platform.python_version(), **versions()},
        "targets": {"peak_growth_mib": GROWTH_TARGET_MIB, "met": met},
        "found": found,
    }
    asked.out.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))
    print(f"{'target met' if met else 'TARGET MISSED'}; written to {asked.out}")
    return 0 if met else 1


def save_model(folder: Path, tokens: int) -> Path:
    """Four KDA layers in the shape of ``builtin:hybrid``, random, with memories as long as the context."""
    from transformers import KimiLinearConfig, KimiLinearForCausalLM

    torch.manual_seed(0)
    config = KimiLinearConfig(
        vocab_size=1812,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        linear_num_heads=4,
        linear_head_dim=64,
        layer_types=["linear_attention"] * 4,
        mlp_layer_types=["dense"] * 4,
        num_local_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=64,
        max_position_embeddings=2 * tokens,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.06,
    )
    model = KimiLinearForCausalLM(config)
    for name, weight in model.named_parameters():
        if name.endswith("A_log"):
            torch.nn.init.uniform_(weight, -10.0, -4.0)
    model.save_pretrained(folder)
    return folder


def measure(llm: LLM, tokens: int) -> dict[str, float]:
    """One prefill and a short answer."""
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(3, 1800, (tokens,), generator=generator).tolist()
    llm.release(llm.prefill(prompt[:4096]))
    before = resident("VmRSS")
    reset_peak()
    started = time.perf_counter()
    session = llm.prefill(prompt)
    seconds = time.perf_counter() - started
    result = llm.generate([session], 8)[0]
    return {
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "tokens_per_s": round(tokens / seconds),
        "peak_growth_mib": round(max(resident("VmHWM") - before, 0) / 1024, 1),
        "survived": result.finish == "length" and bool(llm.states.recurrent[:, session.slot].isfinite().all()),
    }


if __name__ == "__main__":
    raise SystemExit(main())
