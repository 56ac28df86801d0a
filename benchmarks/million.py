"""A context of 1,048,576 tokens through a KDA-only stack of the embedded shape: seconds, memory growth, survival.

    python benchmarks/million.py

Random weights with slow decays; one prefill, then a greedy answer.  Writes ``benchmarks/million.json`` and exits 1 when
memory grew by more than 2 GiB or the answer is not finite.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import torch
from workbench import reset_peak, resident, save_random_model, write_result

from evalgate.engine.llm import LLM

TOKENS = 2**20
GROWTH_TARGET_MIB = 2048
LAYERS = ("linear_attention",) * 4
SIZES = {
    "vocab_size": 1812,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "linear_num_heads": 4,
    "linear_head_dim": 64,
    "initializer_range": 0.06,
}
"""Those of ``builtin:hybrid``."""
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
        llm = LLM.open(
            save_random_model(Path(folder), LAYERS, (-10.0, -4.0), **SIZES, max_position_embeddings=2 * asked.tokens),
            max_sessions=2,
        )
    found = measure(llm, asked.tokens)
    met = found["peak_growth_mib"] <= GROWTH_TARGET_MIB and bool(found["survived"])
    print(json.dumps(found, indent=2))
    targets = {"peak_growth_mib": GROWTH_TARGET_MIB}
    return write_result(asked.out, asked.threads, met=met, targets=targets, found=found)


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
