"""How fast haystacks are built and compiled, beside RULER's generator as lm-eval runs it, and in how much memory.

    pip install wonderwords nltk   # what lm-eval's RULER needs
    python benchmarks/suite_build.py

One process, one thread, the tokenizer of ``builtin:hybrid`` for both.  RULER's search for its size, and lm-eval's
import, are apart: its rate is of the samples alone, which favours it.  Writes ``benchmarks/suite_build.json`` and exits
1 when a target is missed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core, for both

from workbench import reset_peak, resident, write_result

from evalgate.backends.models import find_model
from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.tasks.compiled import compile_suite
from evalgate.tasks.haystack import Builder
from evalgate.tasks.suite import Suite, load_suite

LENGTH, MILLION = 131_072, 1_048_576
SECONDS_TARGET = 60.0
"""Most that 100 haystacks of ``release`` may take."""
GROWTH_TARGET = 0.10
"""Most that the peak may grow from the first haystack of a million tokens to the last, as a share of it."""
OUT = Path(__file__).with_suffix(".json")


def builds(tokenizer: ModelTokenizer, count: int) -> dict[str, float]:
    """``count`` haystacks of suite ``release`` that are 131,072 tokens long."""
    builder = Builder(load_suite("release"), tokenizer, "build")
    streams = [stream for stream in builder.streams if stream.longest == LENGTH]
    wanted = itertools.islice(((seed, stream) for seed in itertools.count() for stream in streams), count)
    started, tokens = time.process_time(), 0
    for seed, stream in wanted:
        tokens += len(builder.build(seed, stream).tokens)
    seconds = time.process_time() - started
    return {"haystacks": count, "tokens": tokens, "seconds": seconds, "tokens_per_s": tokens / seconds}


def ruler(samples: int) -> dict[str, float]:
    """The same length by lm-eval's ``niah_single_1``, whose haystack needs no network."""
    from lm_eval.tasks.ruler.niah_utils import TEMPLATE
    from lm_eval.tasks.ruler.prepare_niah import generate_samples, get_haystack
    from transformers import AutoTokenizer

    given: dict[str, Any] = {
        "max_seq_length": LENGTH,
        "template": TEMPLATE,
        "type_haystack": "repeat",
        "type_needle_k": "words",
        "type_needle_v": "numbers",
        "TOKENIZER": AutoTokenizer.from_pretrained(find_model("builtin:hybrid")),
    }
    haystack = get_haystack(type_haystack="repeat")
    seconds, tokens = [], 0
    for count in (1, 1 + samples):
        started = time.process_time()
        made = generate_samples(haystack, num_samples=count, **given)
        seconds.append(time.process_time() - started)
        tokens = sum(sample["length"] for sample in made[1:])
    alone = seconds[1] - seconds[0]
    return {"samples": samples, "search_s": seconds[0], "seconds": alone, "tokens_per_s": tokens / alone}


def compiled(tokenizer: ModelTokenizer, haystacks: int) -> dict[str, float]:
    """Compile haystacks of a million tokens; how much memory the first takes, and how much all of them."""
    body = load_suite("needle").model_dump(by_alias=True, exclude_unset=True)
    body |= {"name": "million", "lengths": [MILLION], "tasks": ["single", "multikey@8"]}
    builder = Builder(Suite.model_validate(body), tokenizer, "build")
    peaks: list[int] = []
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        reset_peak()
        before = resident("VmRSS")
        out = Path(folder) / "million.parquet"
        compile_suite(builder, "", haystacks, out, lambda *_: peaks.append(resident("VmHWM")))
        size = out.stat().st_size
    tokens = haystacks * MILLION
    return {
        "haystacks": haystacks,
        "seconds": time.process_time() - started,
        "bytes_per_token": size / tokens,
        "before_mib": before / 1024,
        "first_peak_mib": peaks[0] / 1024,
        "last_peak_mib": peaks[-1] / 1024,
    }


def main() -> int:
    """Build, compare, compile, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--haystacks", type=int, default=100)
    parser.add_argument("--samples", type=int, default=30, help="that RULER's generator makes")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    tokenizer = ModelTokenizer(find_model("builtin:hybrid"))
    found = {
        "compile": compiled(tokenizer, 8),
        "build": builds(tokenizer, asked.haystacks),
        "ruler": ruler(asked.samples),
    }
    found["build"]["times_ruler"] = found["build"]["tokens_per_s"] / found["ruler"]["tokens_per_s"]
    growth = found["compile"]["last_peak_mib"] / found["compile"]["first_peak_mib"] - 1
    met = found["build"]["seconds"] * 100 / asked.haystacks <= SECONDS_TARGET and growth <= GROWTH_TARGET
    rounded = {part: {name: round(value, 3) for name, value in row.items()} for part, row in found.items()}
    print(rounded)
    targets = {"seconds_per_100": SECONDS_TARGET, "growth": GROWTH_TARGET}
    return write_result(asked.out, 1, met=met, targets=targets, found=rounded, growth=round(growth, 4))


if __name__ == "__main__":
    raise SystemExit(main())
