"""What every benchmark needs: this machine in words, memory of this process, random models, and the file of results."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path


def write_result(out: Path, threads: int, *, met: bool, **body: object) -> int:
    """Write what was found beside date, command and machine; returns the exit code, 1 when a target was missed."""
    whole = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *map(shown, sys.argv)]),
        "threads": threads,
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "python": platform.python_version(), **versions()},
        "targets_met": met,
        **body,
    }
    out.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    print(f"{'targets met' if met else 'TARGETS MISSED'}; written to {out}")
    return 0 if met else 1


def shown(argument: str) -> str:
    """A word of the command line without the folders of this machine: from the repository on, else the name alone."""
    path = Path(argument)
    if not path.is_absolute():
        return argument
    root = Path(__file__).resolve().parent.parent
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def save_random_model(folder: Path, layers: Sequence[str], decay: tuple[float, float], **sizes: float) -> Path:
    """A random model with these layers and sizes; ``decay`` bounds A_log, so that memories are as long as the context.

    ``sizes`` are those that models differ in: vocabulary, hidden and intermediate width, heads, widths of keys and
    values, window.
    """
    import torch
    from transformers import KimiLinearConfig, KimiLinearForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    fixed: Mapping[str, int] = {
        "num_hidden_layers": len(layers),
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    kinds = {"layer_types": list(layers), "mlp_layer_types": ["dense"] * len(layers)}
    model = KimiLinearForCausalLM(KimiLinearConfig(**fixed, **sizes, **kinds))
    for name, weight in model.named_parameters():
        if name.endswith("A_log"):
            torch.nn.init.uniform_(weight, *decay)
    model.save_pretrained(folder)
    return folder


def resident(field: str) -> int:
    """``VmRSS`` (now) or ``VmHWM`` (peak) of this process, in KiB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise SystemExit(f"/proc/self/status has no {field}; this benchmark needs Linux")


def reset_peak() -> None:
    """Let ``VmHWM`` begin anew, so that loading does not count."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def cpu_name() -> str:
    """As /proc/cpuinfo has it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def versions() -> dict[str, str]:
    """Of the libraries that matter here."""
    import torch
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__}
