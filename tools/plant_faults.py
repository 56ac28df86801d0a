"""Put known faults of other engines into a copy of this one, one by one, and see that a test fails for each.

    python tools/plant_faults.py [--only NAME ...]

Every fault is a change of a few characters that a reviewer could miss; each is one that some engine shipped (a state
saved or restored at the wrong token, a slot shared or not zeroed, a merge with the wrong scale).  Prints a table and
exits 1 when a fault survives its tests.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
REQUESTS, PREEMPTION = "tests/test_engine_requests.py", "tests/test_engine_preemption.py"
SESSIONS, LOGITS = "tests/test_engine_sessions.py", "tests/test_engine_logits.py"
PREFIXES, MEMORY, RANDOM = "tests/test_engine_prefixes.py", "tests/test_engine_memory.py", "tests/test_engine_random.py"
ROUNDING, KDA = "tests/test_engine_compression.py", "tests/test_kernels_kda.py"
MLA, LAYERS, CODECS = "tests/test_kernels_mla.py", "tests/test_kernels_layers.py", "tests/test_kernels_codecs.py"


LIMIT_S = 400
"""Several times what the slowest of the test files takes; a fault may also make the engine wait for ever."""


class Fault(NamedTuple):
    """``old`` becomes ``new`` in ``file``; one of ``tests`` must fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


ENGINE = "evalgate/engine"
FAULTS = (
    Fault(
        "a later chunk gets the state transposed",
        f"{ENGINE}/kda_core.py",
        "state = memory.recurrent.index_select(0, batch.slots)\n",
        "state = memory.recurrent.index_select(0, batch.slots)\n"
        "        state = state.transpose(-1, -2).contiguous() if batch.start else state\n",
        (LOGITS,),
    ),
    Fault(
        "a later chunk starts from nothing",
        f"{ENGINE}/kda_core.py",
        "chunk_kda(q, k, v, g, b, state, at_grid=",
        "chunk_kda(q, k, v, g, b, state * (batch.start == 0), at_grid=",
        (LOGITS,),
    ),
    Fault(
        "padding is written into the state",
        f"{ENGINE}/kda_core.py",
        "k, v, g = (t.masked_fill(padding[:, :, None, None], 0.0) for t in (k, v, g))",
        "k, v, g = (t for t in (k, v, g))",
        (SESSIONS,),
    ),
    Fault(
        "padding enters the convolution's state",
        "kernels/short_conv.py",
        "    if lengths is None:\n        return ConvResult(output, inputs[:, length:]",
        "    if lengths is not inputs:\n        return ConvResult(output, inputs[:, length:]",
        (SESSIONS,),
    ),
    Fault(
        "every row of a batch decodes on the convolution of the first",
        f"{ENGINE}/kda_core.py",
        "short_conv(inputs.qkv[:, None], layer.taps, memory.conv.index_select(0, slots))",
        "short_conv(inputs.qkv[:, None], layer.taps, memory.conv.index_select(0, slots[:1].expand_as(slots)))",
        (SESSIONS,),
    ),
    Fault(
        "a reused slot is not zeroed",
        f"{ENGINE}/state_pool.py",
        "            part.zero_()\n",
        "            part.nan_to_num_(0.5)\n",
        (MEMORY,),
    ),
    Fault(
        "the scratch slot is handed out",
        f"{ENGINE}/state_pool.py",
        "range(slots, 0, -1)",
        "range(slots - 1, -1, -1)",
        (MEMORY,),
    ),
    Fault(
        "the scratch page is handed out",
        f"{ENGINE}/page_pool.py",
        "list(range(1, pages + 1))",
        "list(range(pages))",
        (MEMORY,),
    ),
    Fault(
        "a fork does not copy the state",
        f"{ENGINE}/state_pool.py",
        "            new.copy_(old)\n",
        "            new.zero_()\n",
        (MEMORY,),
    ),
    Fault(
        "a fork shares the partly filled page",
        f"{ENGINE}/memory.py",
        "full, rest = divmod(parent.cached, self.pages.page)",
        "full, rest = -(-parent.cached // self.pages.page), 0",
        (SESSIONS,),
    ),
    Fault(
        "a page is free while others hold it",
        f"{ENGINE}/page_pool.py",
        "            if self._references[page] == 0:\n",
        "            if self._references[page] >= 0:\n",
        (MEMORY,),
    ),
    Fault(
        "a snapshot is never written",
        f"{ENGINE}/snapshot_pool.py",
        "            part.copy_(value)\n",
        "            part.copy_(part)\n",
        (PREFIXES,),
    ),
    Fault(
        "a hit restores latents only",
        f"{ENGINE}/snapshot_pool.py",
        "recurrent.copy_(self._form.decode(encoded, recurrent.dtype))",
        "self._form.decode(encoded, recurrent.dtype)",
        (REQUESTS,),
    ),
    Fault(
        "a hit forgets the convolution's tail",
        f"{ENGINE}/snapshot_pool.py",
        "            live.copy_(stored[slot])\n",
        "            live.zero_()\n",
        (REQUESTS,),
    ),
    Fault(
        "a hit restores two of three convolution segments",
        f"{ENGINE}/snapshot_pool.py",
        "            live.copy_(stored[slot])\n",
        "            live.copy_(stored[slot])\n            live[..., live.shape[-1] // 3 * 2 :] = 0\n",
        (REQUESTS,),
    ),
    Fault(
        "a snapshot is labelled with another token count",
        f"{ENGINE}/prefix_cache.py",
        "node = self.index.place(tokens, count)\n",
        "node = self.index.place(tokens, max(count - self.grid, self.grid))\n",
        (REQUESTS,),
    ),
    Fault(
        "a hit does not hold its pages",
        f"{ENGINE}/memory.py",
        "        self.pages.retain([page for page in prefix.pages if page])\n",
        "",
        (REQUESTS,),
    ),
    Fault(
        "a stored prefix does not hold its pages",
        f"{ENGINE}/prefix_cache.py",
        "        self.pages.retain([page for page in session.pages if page])\n",
        "",
        (REQUESTS,),
    ),
    Fault(
        "a whole prompt is taken from the cache, with no token left to compute",
        f"{ENGINE}/job.py",
        "min(self.turn_at, self.prompt - 1)",
        "min(self.turn_at, self.prompt)",
        (REQUESTS,),
    ),
    Fault(
        "blocks of a prefix are found by their last tokens only",
        f"{ENGINE}/prefix_index.py",
        'array("q", tokens[start : start + self.grid])',
        'array("q", tokens[start + self.grid - 2 : start + self.grid])',
        (PREFIXES,),
    ),
    Fault(
        "blocks of a prefix are found without those before them",
        f"{ENGINE}/prefix_index.py",
        "child = node.children.get(block)",
        "child = next((n for n in self.nodes() if n.block == block), None)",
        (PREFIXES,),
    ),
    Fault(
        "eviction does not look at priority",
        f"{ENGINE}/prefix_cache.py",
        "return node.priority, -unused, ",
        "return 0, -unused, ",
        (REQUESTS,),
    ),
    Fault(
        "eviction does not look at what a prefix costs",
        f"{ENGINE}/prefix_cache.py",
        "(node.tokens - self._before(node)) / held",
        "held / (node.tokens - self._before(node))",
        (REQUESTS,),
    ),
    Fault(
        "a pinned prefix is evicted",
        f"{ENGINE}/prefix_cache.py",
        "if not node.pins]",
        "if node]",
        (REQUESTS,),
    ),
    Fault(
        "a prefix that is passed on the way counts as used",
        f"{ENGINE}/prefix_cache.py",
        "        match.node.used = self._tick()\n",
        "        match.node.used = self._tick()\n"
        "        above = match.node.parent\n"
        "        while above is not None:\n"
        "            above.used, above = self._now, above.parent\n",
        (REQUESTS,),
    ),
    Fault(
        "a preempted request keeps its place in the prompt",
        f"{ENGINE}/scheduler.py",
        "job.turned = job.ready = False",
        "job.turned = False",
        (PREEMPTION,),
    ),
    Fault(
        "a preempted request does not replay what it had said",
        f"{ENGINE}/scheduler.py",
        "        job.taken = 0\n",
        "        job.taken = max(0, len(job.produced) - 1)\n",
        (PREEMPTION,),
    ),
    Fault(
        "a cancelled request keeps its memory",
        f"{ENGINE}/scheduler.py",
        "            self._memory.release(job.session)\n            job.session = None\n",
        "            job.session = None\n",
        (PREEMPTION,),
    ),
    Fault(
        "rows that were shared once are shared for ever",
        f"{ENGINE}/scheduler.py",
        "if not set(ids) <= set(self._shared[0]):",
        "if not self._shared[0]:",
        (PREEMPTION, REQUESTS, RANDOM),
    ),
    Fault(
        "a codec that acts once acts at the end of the prompt",
        f"{ENGINE}/job.py",
        "end = self.prompt if self.request.context is None else self.request.context.end",
        "end = self.prompt",
        (REQUESTS,),
    ),
    Fault(
        "off-grid pieces are not rounded where they reach the grid",
        f"{ENGINE}/runner.py",
        "if between and codec.every",
        "if not between and codec.every and False",
        (ROUNDING,),
    ),
    Fault(
        "the residual of error feedback is dropped",
        f"{ENGINE}/compression.py",
        "wanted = state + ERROR_FORM.decode(error, state.dtype)",
        "wanted = state",
        (ROUNDING, CODECS),
    ),
    Fault(
        "a prompt that is too long is cut",
        f"{ENGINE}/llm.py",
        "        if tokens > self.window:\n",
        "        if tokens > 10 * self.window:\n",
        (SESSIONS, REQUESTS),
    ),
    Fault(
        "int8 latents are read without their scale",
        "kernels/latent_codec.py",
        "part.mul_(scales[..., i : i + 1])",
        "part.mul_(scales[..., i : i + 1].sign())",
        (CODECS, ROUNDING),
    ),
    Fault(
        "an empty part of a merge has weight",
        "kernels/lse_merge.py",
        "top.masked_fill(top == -torch.inf, 0.0)",
        "top",
        (MLA,),
    ),
    Fault(
        "parts of a merge are weighted without their maximum",
        "kernels/lse_merge.py",
        "top + total.log()",
        "total.log()",
        (MLA,),
    ),
    Fault(
        "attention is scaled by another width",
        f"{ENGINE}/mla_layer.py",
        "(config.nope + config.rope) ** -0.5",
        "config.nope**-0.5",
        (LOGITS,),
    ),
    Fault(
        "the window slides on after the context",
        f"{ENGINE}/visibility.py",
        "min(position + 1, self.context_end)",
        "position + 1",
        (ROUNDING, LOGITS),
    ),
    Fault(
        "decode forgets to decay the state",
        "kernels/kda_decode.py",
        "* g.exp().unsqueeze(-1)",
        "* g.exp().unsqueeze(-1).clamp(min=0.999)",
        (KDA, LOGITS),
    ),
    Fault(
        "a row of NaN is answered",
        f"{ENGINE}/scheduler.py",
        "            if not ok:\n",
        "            if not ok and False:\n",
        (SESSIONS, REQUESTS),
    ),
)


def main() -> int:
    """Plant, test, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="faults whose name contains one of these")
    asked = parser.parse_args()
    chosen = [f for f in FAULTS if not asked.only or any(part in f.name for part in asked.only)]
    git = shutil.which("git")
    if git is None:
        raise SystemExit("git was not found; it makes the copy that faults are planted in")
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        archive = subprocess.run([git, "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(copy, filter="tar")
        if sound := failing(copy, sorted({test for fault in chosen for test in fault.tests})):
            raise SystemExit(f"{sound} fails without any fault; mend that first")
        for fault in chosen:
            found = plant(copy, fault)
            survived += found is None
            print(f"{'SURVIVED' if found is None else 'caught'}  {fault.name}  {found or ''}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} faults caught")
    return 1 if survived else 0


def plant(copy: Path, fault: Fault) -> str | None:
    """The test that fails with the fault in place; None when none does."""
    path = copy / fault.file
    sound = path.read_text(encoding="utf-8")
    if sound.count(fault.old) != 1:
        raise SystemExit(
            f"{fault.file} holds {fault.old!r} {sound.count(fault.old)} times, expected once: mend the table"
        )
    path.write_text(sound.replace(fault.old, fault.new), encoding="utf-8")
    try:
        return failing(copy, fault.tests)
    finally:
        path.write_text(sound, encoding="utf-8")


def failing(copy: Path, tests: Sequence[str]) -> str | None:
    """The first of ``tests`` that fails; None when all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(
            command, cwd=copy, check=False, stdout=subprocess.PIPE, text=True, env=environment, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S} s"
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].partition("::")[2].partition(" - ")[0] if failed else f"pytest ended with {done.returncode}"


if __name__ == "__main__":
    raise SystemExit(main())
