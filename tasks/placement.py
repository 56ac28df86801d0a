"""Where in its band a needle goes: anywhere, on a grid of depths, at engine boundaries, or near the ends."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import within


class _Mode(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def place(self, draw: Draw, low: float, high: float, room: int) -> float:
        """A depth in [low, high) of a context of ``room`` tokens: here drawn uniformly."""
        del room
        return within(draw, low, high)


class Uniform(_Mode):
    """Any depth of the band is as likely as another."""

    mode: Literal["uniform"] = "uniform"


class Grid(_Mode):
    """Only the depths that are named, so that a heat map has whole columns."""

    mode: Literal["grid"]
    depths: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1)]

    def place(self, draw: Draw, low: float, high: float, room: int) -> float:
        """One of the depths that lie in [low, high), 1 in the last; where none does, any."""
        del room
        inside = [depth for depth in self.depths if low <= depth < high or depth == high == 1.0]
        return draw.choice(inside) if inside else within(draw, low, high)


class Ends(_Mode):
    """The first band's needles within the first ``tokens`` tokens, the last band's within the last."""

    mode: Literal["ends"]
    tokens: int = Field(ge=32)

    def place(self, draw: Draw, low: float, high: float, room: int) -> float:
        """Near the end of the context that [low, high) reaches; uniformly where it reaches none."""
        share = self.tokens / room
        if low == 0.0:
            high = min(high, share)
        elif high == 1.0:
            low = max(low, 1.0 - share)
        return within(draw, low, high)


Offset = Literal["before", "across", "after"]


class Edges(_Mode):
    """Just before, across and just after multiples of what an engine cuts at: prefill chunk, page, snapshot.

    Positions count from prompt token 0, as engines count.
    """

    mode: Literal["edges"]
    every: Annotated[list[Annotated[int, Field(ge=16)]], Field(min_length=1)]
    offsets: Annotated[list[Offset], Field(min_length=1)] = ["before", "across", "after"]

    def snap(self, draw: Draw, target: float, tokens: int, start: int, end: int) -> int | None:
        """Where a line of ``tokens`` that aims at prompt token ``target`` goes, within [start, end).

        The edge nearest to the target, of a multiple and an offset that are drawn from those that leave room; None
        where none does.
        """
        ways = [(every, offset) for every in self.every for offset in self.offsets]
        for every, offset in draw.permutation(ways):
            shift = {"before": tokens, "across": tokens // 2, "after": 0}[offset]
            least, most = -(-(start + shift) // every), (end - tokens + shift) // every
            if least <= most:
                return min(max(round((target + shift) / every), least), most) * every - shift
        return None


Placement = Annotated[Uniform | Grid | Ends | Edges, Field(discriminator="mode")]
