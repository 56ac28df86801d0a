"""Requests per second to a server at 1, 8 and 32 at a time, beside a bare loop of httpx over prompts of the same kind.

    python benchmarks/client.py [--vllm VENV] [--haystacks 8]

The server is real: ``transformers serve`` with builtin:hybrid, or with ``--vllm`` vLLM with builtin:gdn-hybrid and no
prefix caching, so that both sides bring it the same work.  The loop is what a script would be: it posts every prompt
and reads the JSON, with no order, retry, check or record.  Both sides ask other haystacks of the same suite, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from workbench import write_result

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from local_server import serving

from evalgate.backends.base import Group
from evalgate.backends.models import find_model
from evalgate.backends.served import ServedBackend
from evalgate.backends.server_options import ServerOptions
from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.runner.run import group_of
from evalgate.tasks.haystack import Builder
from evalgate.tasks.suite import load_suite

AT_ONCE = (1, 8, 32)
ROUNDS = 3
LEAST_SHARE = 0.9
"""Of the bare loop's rate, at every bound: the target."""


def groups(tokenizer: ModelTokenizer, seed_set: str, haystacks: int) -> list[Group]:
    """What is asked of so many haystacks of suite ``smoke``."""
    suite = load_suite("smoke")
    builder = Builder(suite, tokenizer, seed_set)
    made = [group_of(suite, tokenizer, builder.build(i, s)) for i in range(haystacks) for s in builder.streams]
    return made[:haystacks]


def ours(backend: ServedBackend, asked: list[Group]) -> float:
    """Seconds that the backend takes."""
    started = time.perf_counter()
    for answers in backend.answer_all(asked):
        assert all(answer.error is None for answer in answers), answers
    return time.perf_counter() - started


async def _bare(address: str, model: str, bodies: list[Any], at_once: int) -> None:
    free = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:

        async def post(prompt: Any, max_tokens: int) -> None:
            async with free:
                body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
                response = await client.post(f"{address}/completions", json=body)
                assert response.json()["choices"][0]["finish_reason"]

        await asyncio.gather(*(post(*body) for body in bodies))


def bare(address: str, model: str, tokenizer: ModelTokenizer, asked: list[Group], at_once: int, *, ids: bool) -> float:
    """Seconds that a loop of httpx takes."""
    prompts = [
        group.tokens[: ask.context_end] + question.tail
        for group in asked
        for ask in group.asks
        for question in ask.questions
    ]
    bodies = [(prompt if ids else tokenizer.decode_whole(prompt), asked[0].max_tokens) for prompt in prompts]
    started = time.perf_counter()
    asyncio.run(_bare(address, model, bodies, at_once))
    return time.perf_counter() - started


def measure(address: str, model: str, folder: Path, haystacks: int, *, ids: bool) -> list[dict[str, float]]:
    """Both sides at every bound, in turns; the median round of each."""
    tokenizer, rows = ModelTokenizer(folder), []
    for at_once in AT_ONCE:
        options = ServerOptions(base_url=address, tokenizer=str(folder), concurrency=at_once)
        backend, times, other = ServedBackend(model, options), [], []
        for turn in range(ROUNDS):
            mine, theirs = (groups(tokenizer, f"client-{at_once}-{turn}-{who}", haystacks) for who in ("a", "b"))
            times.append(ours(backend, mine))
            other.append(bare(address, model, tokenizer, theirs, at_once, ids=ids))
        count = sum(len(ask.questions) for group in mine for ask in group.asks)
        a, b = count / statistics.median(times), count / statistics.median(other)
        rows.append({"at_once": at_once, "questions": count, "per_s": round(a, 2), "bare_per_s": round(b, 2)})
        rows[-1]["share"] = round(a / b, 3)
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Start the server, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, help="virtual environment of vLLM, as tools/vllm_check.py makes it")
    parser.add_argument("--haystacks", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    if options.vllm is None:
        folder = find_model("builtin:hybrid")
        model, program = str(folder), Path(sys.executable).with_name("transformers")
        command = [str(program), "serve", model, "--device", "cpu", "--dtype", "float32"]
        environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    else:
        folder, model = find_model("builtin:gdn-hybrid"), "gdn-hybrid"
        command = [str(options.vllm / "bin" / "vllm"), "serve", str(folder), "--served-model-name", model]
        command += ["--dtype", "bfloat16", "--max-model-len", "4096", "--no-enable-prefix-caching"]
        environment = {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with tempfile.TemporaryDirectory() as work, serving(command, environment, Path(work) / "log") as address:
        rows = measure(address, model, folder, options.haystacks, ids=options.vllm is not None)
    met = all(row["share"] >= LEAST_SHARE for row in rows)
    server = "transformers serve" if options.vllm is None else "vllm"
    return write_result(options.out, 1, met=met, server=server, least_share=LEAST_SHARE, rounds=ROUNDS, rows=rows)


if __name__ == "__main__":
    sys.exit(main())
