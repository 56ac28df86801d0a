"""The engine as lm-eval's model ``evalgate``, opened by its arguments."""

from __future__ import annotations

from typing import Any

from lm_eval.api.registry import register_model

from evalgate.backends.lm_eval_model import EngineLM
from evalgate.backends.native import NativeBackend
from evalgate.errors import UnsupportedError
from evalgate.gates.profile import load_profile
from evalgate.kernels.ops import cuda_obstacle


@register_model("evalgate")
class EvalgateLM(EngineLM):
    """``lm_eval --model evalgate --model_args pretrained=MODEL,profile=PROFILE``"""

    def __init__(
        self,
        pretrained: str | None = None,
        profile: str = "full",
        dtype: str = "fp32",
        device: str | None = None,
        max_length: int | None = None,
        *,
        add_bos_token: bool = False,
        **ignored: Any,
    ) -> None:
        """Load ``pretrained`` under ``profile``.

        ``ignored`` are lm-eval's settings of batches.  Raises UnsupportedError (an unknown setting, no model) and what
        opening a model raises.
        """
        unknown = set(ignored) - {"batch_size", "max_batch_size"}
        if unknown:
            raise UnsupportedError(f"model evalgate has no setting {min(unknown)!r}; see docs/lm-eval.md")
        if not pretrained:
            raise UnsupportedError("model evalgate: name the model as --model_args pretrained=MODEL")
        found = load_profile(profile)
        backend = NativeBackend(
            pretrained, found.sections, profile=found.name, dtype=dtype, device=_place(device), max_tokens=max_length
        )
        super().__init__(backend, add_bos_token=add_bos_token)


def _place(device: str | None) -> str:
    """Where to compute: lm-eval names the first GPU where nobody named anything, whether there is one or not."""
    if device in (None, "cuda:0"):
        return "cpu" if cuda_obstacle() else "cuda"
    return str(device)
