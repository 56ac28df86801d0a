"""A distribution of context lengths, as requests really had them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from evalgate.errors import RefusedError

ABSURD = 1 << 31
"""Tokens that no context has; above it a column is something else, such as a time."""
SHOWN = (0.5, 0.9, 0.95, 0.99)
"""Quantiles that are told."""
NAMES = ("tokens", "length", "prompt_tokens", "context_tokens")
"""Columns that are taken where none is named, the first that is there."""


class Lengths:
    """Tokens of each request, ascending."""

    def __init__(self, tokens: npt.ArrayLike, source: str) -> None:
        """``tokens`` are whole numbers ``[n]`` from 1 up.  Raises RefusedError: none, or one that is no length."""
        found = np.asarray(tokens)
        if found.ndim != 1 or not found.size:
            raise RefusedError(f"{source}: found no lengths")
        numbers = found.astype(np.float64) if found.dtype.kind in "iuf" else np.full(found.shape, np.nan)
        wrong = ~(np.isfinite(numbers) & (numbers >= 1) & (numbers < ABSURD) & (numbers == np.floor(numbers)))
        if wrong.any():
            row = int(wrong.argmax())
            raise RefusedError(
                f"{source}: row {row + 1} has the length {found[row]!s}, expected whole tokens from 1 to {ABSURD - 1:,}"
                f"; {int(wrong.sum()):,} of {found.size:,} rows are like it"
            )
        self.tokens: npt.NDArray[np.int64] = np.sort(numbers.astype(np.int64))
        self.source = source

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def mean(self) -> float:
        """Tokens of a request on average."""
        return float(self.tokens.mean())

    def quantile(self, share: float) -> int:
        """The smallest length that at least ``share`` of the requests do not exceed."""
        return int(self.tokens[max(0, int(np.ceil(share * len(self.tokens))) - 1)])


def read_lengths(path: Path, column: str | None = None) -> Lengths:
    """Lengths from a CSV or parquet file, one request a row.

    Raises RefusedError: no such file or column, not readable, or a row that cannot be a length.
    """
    import pandas as pd  # takes half a second, which other commands need not wait for

    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RefusedError(f"{path} cannot be read as a table of lengths ({first})") from error
    known = [str(name) for name in frame.columns]
    chosen = column or next((name for name in NAMES if name in known), known[0] if len(known) == 1 else None)
    if chosen not in known:
        wanted = f"column {column!r}" if column else f"a column named {' or '.join(NAMES)}"
        raise RefusedError(
            f"{path}: found columns {', '.join(known) or 'none'}, expected {wanted}; name it as --column"
        )
    return Lengths(frame[chosen].to_numpy(), str(path))
