"""Whether cost grows with the length alone: prefill at 8k and 128k, and decode after 8k and after a million tokens.

    python benchmarks/linear.py

Prefill is that of ``builtin:hybrid``, whose attention layer is timed apart: its share must grow.  Decode is that of the
KDA-only stack of ``benchmarks/million.py``.  Short and long take turns, so that a busy machine slows both.  Writes
``benchmarks/linear.json`` and exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from million import LAYERS, SIZES
from workbench import save_random_model, write_result

from evalgate.backends.models import find_model
from evalgate.engine.llm import LLM
from evalgate.engine.mla_layer import MlaLayer

SHORT, LONG, DECODED_LONG = 8192, 131072, 2**20
PREFILL_TARGET = 0.9
"""Least tokens per second at the long length, of those at the short one, without the attention layers."""
DECODE_TARGET = 1.1
"""Most time for a token after the long context, of that after the short one."""
TURNS, TOKENS = 15, 16
"""Turns of decoding, and tokens in each."""
OUT = Path(__file__).with_suffix(".json")


def main() -> int:
    """Measure both, write the numbers, and compare them with the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", type=int, default=SHORT)
    parser.add_argument("--long", type=int, default=LONG)
    parser.add_argument("--decoded-long", type=int, default=DECODED_LONG)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    prefill = prefill_both(asked.short, asked.long)
    print(json.dumps(prefill, indent=2), flush=True)
    decode = decode_both(asked.short, asked.decoded_long)
    print(json.dumps(decode, indent=2), flush=True)
    met = prefill["ratio_without_attention"] >= PREFILL_TARGET and decode["ratio"] <= DECODE_TARGET
    targets = {"prefill_ratio_without_attention": PREFILL_TARGET, "decode_ratio": DECODE_TARGET}
    return write_result(asked.out, asked.threads, met=met, targets=targets, prefill=prefill, decode=decode)


def prefill_both(short: int, long: int) -> dict[str, float]:
    """The short length before and after the long one, as often as the long one holds it, up to four times each."""
    llm = LLM.open(find_model("builtin:hybrid"), max_sessions=1, max_tokens=long)
    prompt = random_tokens(long)
    llm.release(llm.prefill(prompt[:1024]))
    times: dict[int, list[tuple[float, float]]] = {short: [], long: []}
    for length in (*[short] * 4, long, *[short] * 4):
        with attention_timed() as spent:
            started = time.perf_counter()
            llm.release(llm.prefill(prompt[:length]))
            times[length].append((time.perf_counter() - started, sum(spent)))
    found: dict[str, float] = {}
    for name, length in (("short", short), ("long", long)):
        whole, attention = (statistics.median(column) for column in zip(*times[length], strict=True))
        found[f"{name}_tokens"] = length
        found[f"{name}_tokens_per_s"] = round(length / whole)
        found[f"{name}_attention_share"] = round(attention / whole, 3)
        found[f"{name}_tokens_per_s_without_attention"] = round(length / (whole - attention))
    rates = (found[f"{name}_tokens_per_s_without_attention"] for name in ("long", "short"))
    return found | {"ratio_without_attention": round(next(rates) / next(rates), 3)}


def decode_both(short: int, long: int) -> dict[str, float]:
    """Seconds a token after either context, in turns."""
    room = long + TURNS * TOKENS + 64
    with tempfile.TemporaryDirectory() as folder:
        model = save_random_model(Path(folder), LAYERS, (-10.0, -4.0), **SIZES, max_position_embeddings=room)
        llm = LLM.open(model, max_sessions=2, max_tokens=room)
    prompt = random_tokens(long)
    sessions = {short: llm.prefill(prompt[:short]), long: llm.prefill(prompt)}
    times: dict[int, list[float]] = {short: [], long: []}
    for turn in range(TURNS):
        for length in (short, long) if turn % 2 else (long, short):
            started = time.perf_counter()
            result = llm.generate([sessions[length]], TOKENS)[0]
            times[length].append((time.perf_counter() - started) / len(result.tokens))
    short_time, long_time = (statistics.median(times[length]) for length in (short, long))
    return {
        "short_tokens": short,
        "long_tokens": long,
        "short_ms_a_token": round(1000 * short_time, 3),
        "long_ms_a_token": round(1000 * long_time, 3),
        "ratio": round(long_time / short_time, 3),
    }


@contextmanager
def attention_timed() -> Iterator[list[float]]:
    """Seconds of each pass through an attention layer."""
    spent: list[float] = []
    whole = MlaLayer.prefill

    def timed(self: MlaLayer, *given: object, **named: object) -> object:
        started = time.perf_counter()
        try:
            return whole(self, *given, **named)  # type: ignore[arg-type]  # passed on as they came
        finally:
            spent.append(time.perf_counter() - started)

    MlaLayer.prefill = timed  # type: ignore[method-assign,assignment]  # for the time of a measurement
    try:
        yield spent
    finally:
        MlaLayer.prefill = whole  # type: ignore[method-assign]  # as it was


def random_tokens(count: int) -> list[int]:
    """Of no meaning: speed does not depend on it."""
    return torch.randint(3, 1800, (count,), generator=torch.Generator().manual_seed(1)).tolist()


if __name__ == "__main__":
    raise SystemExit(main())
