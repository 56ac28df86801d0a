"""Prefill of a middle-sized random model against transformers, and what share of the processor's products it reaches.

    python benchmarks/prefill_middle.py

About 32M parameters: hidden 512, KDA and MLA 3:1, heads of the published widths.  Both engines take turns in float32
and in bfloat16; then the engine alone is set against the matrix products that this machine does, in the same dtype
and with as many threads, and a profile tells where the rest goes.  Writes ``benchmarks/prefill_middle.json`` and exits
1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from prefill import MEMORY_TARGET, compare, open_evalgate
from workbench import save_random_model, write_result

SPEED_TARGETS = {"fp32": 6.0, "bf16": 10.0}
"""Least times transformers' tokens per second in the same dtype."""
HIDDEN, INTERMEDIATE, HEADS, WIDTH, ROPE, LATENT = 512, 1536, 4, 128, 64, 128
LAYERS = ("linear_attention", "linear_attention", "linear_attention", "full_attention") * 2
SIZES = {
    "vocab_size": 3072,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "kv_lora_rank": LATENT,
    "qk_nope_head_dim": WIDTH,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": WIDTH,
    "linear_num_heads": HEADS,
    "linear_head_dim": WIDTH,
}
PEAK = 2048
"""Rows, inner width and columns of the product that measures the peak."""
KINDS = {
    "aten::mm": "projections",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
    "aten::bmm": "kda_products",
    "aten::baddbmm": "kda_products",
    "aten::baddbmm_": "kda_products",
}
"""Operations that are mostly matrix products; the others move memory or take single values."""
OUT = Path(__file__).with_suffix(".json")


def main() -> int:
    """Measure everything, write the numbers, and compare them with the targets."""
    asked = arguments()
    if asked.shares:
        print(json.dumps(shares(asked)))
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        asked.model = str(
            save_random_model(Path(folder), LAYERS, (-8.0, -2.0), **SIZES, max_position_embeddings=4 * asked.length)
        )
        for dtype in SPEED_TARGETS:
            row = compare(asked, dtype, asked.length)
            command = [sys.executable, __file__, "--shares", "--dtype", dtype, "--model", asked.model]
            command += ["--length", str(asked.length), "--threads", str(asked.threads)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rows.append({"dtype": dtype, **row, **json.loads(done.stdout.splitlines()[-1])})
            print(json.dumps({key: rows[-1][key] for key in ("share_of_peak", "time_in")}), flush=True)
    met = all(
        row["speed_ratio"] >= SPEED_TARGETS[row["dtype"]] and row["memory_ratio"] <= MEMORY_TARGET for row in rows
    )
    targets = {"speed_ratio": SPEED_TARGETS, "memory_ratio": MEMORY_TARGET}
    named = {"note": asked.note, "model": "random, 8 layers 3:1, hidden 512, 4 heads x 128", "batch": 1}
    return write_result(asked.out, asked.threads, met=met, **named, targets=targets, rows=rows)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=2, help="timed prefills in each process; the best counts")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each engine and dtype; the median counts")
    parser.add_argument("--note", default="", help="what else the machine was doing")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--shares", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    return parser.parse_args()


def operations(length: int) -> float:
    """Multiplications and additions that the engine spends on one token of a prompt, on average.

    The last layer takes no more than the latents of all but the last token; the head takes only that.
    """
    channels = HEADS * WIDTH
    kda = 2 * (HIDDEN * (3 * channels + 2 * WIDTH + HEADS) + 2 * WIDTH * channels + channels * HIDDEN)
    core = HEADS * (6 * WIDTH**2 + 3 * 64 * WIDTH + 64**2)
    latents = 2 * HIDDEN * (LATENT + ROPE)
    mla = latents + 2 * (HIDDEN * HEADS * (WIDTH + ROPE) + LATENT * HEADS * 2 * WIDTH + channels * HIDDEN)
    attention = HEADS * 2 * (2 * WIDTH + ROPE) * length / 2
    per_kind = {"linear_attention": kda + core, "full_attention": mla + attention}
    return float(sum(per_kind[kind] + 2 * 3 * HIDDEN * INTERMEDIATE for kind in LAYERS[:-1]) + latents)


def shares(asked: argparse.Namespace) -> dict[str, object]:
    """The engine's speed as a share of the peak, and its time by what it does."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.set_num_threads(asked.threads)
    prefill = open_evalgate(asked.model, asked.dtype)
    tokens = torch.randint(5, 3000, (asked.length,), generator=torch.Generator().manual_seed(0)).tolist()
    prefill(tokens[:256])
    peaks, speeds = [], []
    for _ in range(asked.repeats):
        peaks.append(peak(asked.dtype))
        started = time.perf_counter()
        prefill(tokens)
        speeds.append(asked.length / (time.perf_counter() - started))
    reached = operations(asked.length) * max(speeds) / 1e9
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        prefill(tokens)
    times: dict[str, float] = {}
    for event in profiled.key_averages():
        kind = KINDS.get(event.key, "single values and copies")
        times[kind] = times.get(kind, 0.0) + event.self_cpu_time_total
    return {
        "mflop_per_token": round(operations(asked.length) / 1e6, 1),
        "gflops": round(reached, 1),
        "peak_gflops": round(max(peaks), 1),
        "share_of_peak": round(reached / max(peaks), 3),
        "time_in": {kind: round(spent / sum(times.values()), 3) for kind, spent in sorted(times.items())},
    }


def peak(dtype: str) -> float:
    """GFLOP/s of a large matrix product."""
    import torch

    x, y = (torch.randn(PEAK, PEAK, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32) for _ in range(2))
    seconds = []
    for _ in range(10):
        started = time.perf_counter()
        torch.mm(x, y)
        seconds.append(time.perf_counter() - started)
    return 2 * PEAK**3 / min(seconds) / 1e9


if __name__ == "__main__":
    raise SystemExit(main())
