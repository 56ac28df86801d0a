"""The hybrid model: a pure forward over a batch, in two forms, a stretch of tokens and one token for each row."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from evalgate.engine.batch import DecodeBatch, PrefillBatch
from evalgate.engine.compression import StateCodec
from evalgate.engine.config import ModelConfig
from evalgate.engine.device import CPU, Device, Moe
from evalgate.engine.kda_layer import KdaLayer
from evalgate.engine.mla_layer import MlaLayer
from evalgate.engine.page_pool import PagePool
from evalgate.engine.state_pool import StatePool
from evalgate.engine.weights import Weights
from evalgate.kernels.moe import Experts, Router, gated_mlp
from evalgate.kernels.rms_norm import widened


class FeedForward:
    """A gated MLP, or experts beside a gated MLP that every token goes through."""

    def __init__(
        self, config: ModelConfig, weights: Weights, at: str, dtype: torch.dtype, sparse: bool, moe: Moe
    ) -> None:
        self.moe = moe
        dense = f"{at}.shared_experts" if sparse else at
        self.gate_up = weights.read(f"{dense}.gate_proj.weight", f"{dense}.up_proj.weight", dtype=dtype)
        self.down = weights.read(f"{dense}.down_proj.weight", dtype=dtype)
        self.router: Router | None = None
        if sparse and config.moe is not None:
            rules = config.moe
            core = torch.promote_types(dtype, torch.float32)
            self.router = Router(
                weight=weights.read(f"{at}.gate.weight", dtype=core),
                bias=weights.read(f"{at}.gate.e_score_correction_bias", dtype=core),
                top_k=rules.per_token,
                groups=rules.groups,
                top_groups=rules.top_groups,
                normalise=rules.normalise,
                scaling=rules.scaling,
            )
            self.experts = Experts(
                weights.read(f"{at}.experts.gate_up_proj", dtype=dtype),
                weights.read(f"{at}.experts.down_proj", dtype=dtype),
            )

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., hidden]`` -> the same."""
        output = gated_mlp(x, self.gate_up, self.down)
        if self.router is not None:
            output = output + self.moe(x.reshape(-1, x.shape[-1]), self.router, self.experts).view_as(x)
        return output


class HybridModel:
    """Layers in order, each with its norms; knows tokens, slots and pages, and keeps nothing between calls."""

    def __init__(self, config: ModelConfig, weights: Weights, dtype: torch.dtype, device: Device = CPU) -> None:
        """Read the weights, layer by layer, into memory that the model alone holds; raises CheckpointError."""
        self.config = config
        self.dtype = dtype
        self.device = device
        weights = weights.on(device.place)
        self.embedding = weights.read("model.embed_tokens.weight", dtype=dtype)
        self.norm = weights.read("model.norm.weight", dtype=dtype)
        head = "lm_head.weight"
        self.head = weights.read(head, dtype=dtype) if head in weights else self.embedding
        self.mixers: list[KdaLayer | MlaLayer] = []
        self.feeds: list[FeedForward] = []
        self.norms: list[tuple[Tensor, Tensor]] = []
        for layer, kind in enumerate(config.layers):
            at = f"model.layers.{layer}"
            index = config.layers[:layer].count(kind)
            if kind == "kda":
                self.mixers.append(KdaLayer(config, weights, f"{at}.self_attn", index, dtype, device.kda))
            else:
                self.mixers.append(MlaLayer(config, weights, f"{at}.self_attn", index, dtype, device.mla))
            self.feeds.append(FeedForward(config, weights, f"{at}.mlp", dtype, config.sparse[layer], device.moe))
            before = weights.read(f"{at}.input_layernorm.weight", dtype=dtype)
            self.norms.append((before, weights.read(f"{at}.post_attention_layernorm.weight", dtype=dtype)))

    @property
    def recordable(self) -> bool:
        """Whether a step never waits for the device; experts do where they cannot run in grouped products."""
        return self.dtype == torch.bfloat16 or not any(self.config.sparse)

    def prefill(
        self, batch: PrefillBatch, states: StatePool, pages: PagePool, codec: StateCodec, *, whole: bool
    ) -> Tensor:
        """Stretches of tokens; returns each row's last, ``[B, 1, hidden]``.

        With ``whole`` it returns all, ``[B, T, hidden]``, meaningless where a row is padded.  Nothing reads what the
        last layer makes of other tokens, but what it keeps of them.
        """
        x = self.embedding[batch.tokens]
        for mixer, feed, (before, after) in zip(self.mixers, self.feeds, self.norms, strict=True):
            h = self.device.rms_norm(x, before, self.config.rms_eps)
            last = mixer is self.mixers[-1] and not whole
            x = batch.last(x) if last else x
            if isinstance(mixer, KdaLayer):
                errors = [kept[mixer.index].index_select(0, batch.slots) for kept in states.errors]
                acts = mixer.core.acts_on_grid  # else passes end there, and it acts between them
                at_grid = codec.at_grid(batch.start, batch.lengths, errors) if acts else None
                mixed = mixer.prefill(h, batch, states, at_grid)
                x = x + (batch.last(mixed) if last else mixed)
                for kept, new in zip(states.errors, errors, strict=True):
                    kept[mixer.index].index_copy_(0, batch.slots, new)
            else:
                x = x + mixer.prefill(h, batch, pages, last=last)
            x = x + feed(self.device.rms_norm(x, after, self.config.rms_eps))
        return x

    def decode(self, batch: DecodeBatch, states: StatePool, pages: PagePool, codec: StateCodec) -> Tensor:
        """One token for each row; returns ``[B, hidden]``. The codec acts on the states after the step."""
        x = self.embedding[batch.tokens]
        for mixer, feed, (before, after) in zip(self.mixers, self.feeds, self.norms, strict=True):
            h = self.device.rms_norm(x, before, self.config.rms_eps)
            if isinstance(mixer, KdaLayer):
                x = x + mixer.decode(h, batch.slots, states)
            else:
                x = x + mixer.decode(h, batch, pages)
            x = x + feed(self.device.rms_norm(x, after, self.config.rms_eps))
        if not codec.lossless:
            codec.round_slots(states.recurrent, states.errors, batch.slots)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """``[..., hidden]`` -> ``[..., vocab]`` in at least float32."""
        return widened(linear(self.device.rms_norm(hidden, self.norm, self.config.rms_eps), self.head))
