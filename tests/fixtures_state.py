"""Fixtures: a measured state to show, made by formula so that no engine is needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evalgate.gates.profile import load_profile
from evalgate.records import DocumentId, ModelId
from evalgate.state_record import CodecLayer, CodecState, Curve, HeadState, LayerState, StateRecord

MakeState = Callable[..., StateRecord]
HOSTILE = "/models/</title><script>document.title='owned'</script>\u202e"
"""A folder that a model may lie in."""


def curve(size: float, positions: int) -> Curve:
    """A norm and a rank that grow with position, a saturation that goes from 0 towards 1."""
    return Curve(
        norm=[size * (1 + at) for at in range(positions)],
        effective_rank=[min(size + at, 31.0) for at in range(positions)],
        saturation=[at / (at + 1) for at in range(positions)],
    )


def head_state(number: int, width: int, positions: int) -> HeadState:
    """Half-lives from 1 token to none at all; each head's differ."""
    seen: list[float | None] = [2.0 ** (number + at) for at in range(width - 1)]
    rest: list[float | None] = [1024.0 + number] * width
    kept: list[float | None] = [0.05 * (number + 1) + 0.9 * at / positions for at in range(positions - 1)]
    return HeadState(rest=rest, seen=[*seen, None], curve=curve(number + 1.0, positions), kept=[*kept, 1.0])


@pytest.fixture(scope="session")
def make_state() -> MakeState:
    """``make(layers=2, heads=2, width=32, positions=6, profiles=(...), name=HOSTILE)``"""

    def make(
        *,
        layers: int = 2,
        heads: int = 2,
        width: int = 32,
        positions: int = 6,
        profiles: tuple[str, ...] = ("state-int8", "state-rank-4"),
        name: str = HOSTILE,
    ) -> StateRecord:
        found = [
            LayerState(
                layer=4 * layer,
                heads=[head_state(head, width, positions) for head in range(heads)],
                curve=curve(1.5, positions),
                kept=[*([0.1 * (layer + 1)] * (positions - 1)), 1.0],
            )
            for layer in range(layers)
        ]
        codecs = [
            CodecState(
                profile=profile.id,
                form="int8, every 64 tokens" if profile.state.codec_every else "rank 4, once, at the fork",
                accumulates=profile.state.codec_every is not None,
                nbytes=width * width * heads * layers,
                layers=[
                    CodecLayer(
                        once=[0.008] * positions,
                        held=[0.008 * (at + 1) for at in range(positions)],
                        worst_head=0.0625,
                        curve=curve(1.25, positions),
                    )
                    for _ in range(layers)
                ],
            )
            for profile in map(load_profile, profiles)
        ]
        return StateRecord(
            model=ModelId(
                name=name,
                architecture="KimiLinearForCausalLM",
                parameters=1,
                weights_sha256="a" * 64,
                config_sha256="b" * 64,
                tokenizer_sha256="c" * 64,
            ),
            suite=DocumentId(name="needle", version="1.0.0", digest="d" * 64),
            seed_set="main",
            seed=0,
            stream=1,
            length=1024,
            facts=8,
            key_width=width,
            value_width=width,
            positions=[64 * (at + 1) for at in range(positions)],
            nbytes=4 * width * width * heads * layers,
            layers=found,
            codecs=codecs,
        )

    return make
