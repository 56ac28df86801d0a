"""How fast is every kernel? Medians beside the share of what the device copies and multiplies at best."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from gpu_cases import Case
from gpu_clock import Clock, OutOfTimeError, Rates, Run


class Speed(NamedTuple):
    """What was found."""

    kernel: str
    what: str
    seconds: float | None
    """Median; None: not measured."""
    rate: float | None = None
    unit: str = ""
    of_copy: float | None = None
    """Bytes per second, as a share of a plain copy's."""
    of_product: float | None = None
    """Operations per second, as a share of a matrix product's."""
    rival_seconds: float | None = None
    copy_seconds: float | None = None
    met: bool | None = None
    """Whether the target was met; None: there is none, or what it speaks of was not measured."""
    note: str = ""


TARGETS: dict[str, Callable[[Speed], bool | None]] = {
    "prefill": lambda s: None if not (s.rival_seconds and s.seconds) else s.rival_seconds >= s.seconds,
    "decode": lambda s: None if s.of_copy is None else s.of_copy >= 0.70,
    "attention": lambda s: None if s.of_copy is None else s.of_copy >= 0.60,
    "restore": lambda s: None if not (s.copy_seconds and s.seconds) else s.seconds <= 2.0 * s.copy_seconds,
}
"""At least as fast as flash-linear-attention; shares of the copy bandwidth; at most two plain copies."""


def measure(case: Case, clock: Clock, rates: Rates) -> Speed:
    """The case's median, or why there is none."""
    if clock.device.type == "cuda" and case.room > 0.9 * torch.cuda.mem_get_info()[0]:
        return Speed(case.kernel, case.what, None, note=f"needs {case.room / 2**30:.0f} GiB of memory")
    seconds, note = _median(case.make, clock)
    if seconds is None:
        return Speed(case.kernel, case.what, None, note=note)
    found = Speed(
        case.kernel,
        case.what,
        seconds,
        case.units / seconds,
        case.unit,
        case.nbytes / seconds / rates.copy,
        case.operations / seconds / rates.product,
        copy_seconds=None if case.copy is None else _median(case.copy, clock)[0],
    )
    return judged(case, found)


def compare(case: Case, found: Speed, clock: Clock) -> Speed:
    """The same with flash-linear-attention's median beside it, or why there is none."""
    if case.rival is None or found.seconds is None:
        return found
    seconds, why = _median(case.rival, clock)
    return judged(case, found._replace(rival_seconds=seconds, note=f"fla: {why}" if why else ""))


def judged(case: Case, found: Speed) -> Speed:
    """With what its target says."""
    return found._replace(met=TARGETS[case.target](found)) if case.target else found


def _median(make: Callable[[], list[Run]], clock: Clock) -> tuple[float | None, str]:
    """Seconds, or the reason why there are none; the inputs are freed before the next are made."""
    try:
        with clock.bounded():
            return clock.median(make()), ""
    except OutOfTimeError:
        return None, "no time was left"
    except torch.OutOfMemoryError:
        return None, "out of memory"
    finally:
        if clock.device.type == "cuda":
            torch.cuda.empty_cache()
