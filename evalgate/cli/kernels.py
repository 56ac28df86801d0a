"""`evalgate kernels report`: what the GPU kernels become on a chip, compiled here without one."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from evalgate.cli import console
from evalgate.cli.run import progress
from evalgate.errors import ExitCode, UnknownNameError, UnsupportedError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.table import Table

    from evalgate.kernels.gpu.builds import Row

LEGEND = (
    "registers: of a thread; shared: memory of a program; warps: at a time on a multiprocessor, and their share of the "
    "most; matrix: tensor-core instructions; wide: loads and stores that move 16 bytes a thread or more, of all"
)

app = typer.Typer(help="GPU kernels: what they become on a chip.", no_args_is_help=True)


@app.callback()
def top() -> None:
    """GPU kernels: what they become on a chip."""


@app.command("report")
def kernels_report(
    chip: Annotated[
        list[str] | None,
        typer.Option(help="Chip to compile for: sm_80, sm_90 or sm_100; may be given again. Else all three."),
    ] = None,
    fla: Annotated[
        bool, typer.Option("--fla", help="Compile flash-linear-attention's KDA kernels too, for comparison.")
    ] = False,
    jobs: Annotated[
        int, typer.Option(min=0, help="Compilers at a time; 0: one for each core.", show_default=False)
    ] = 0,
    json: console.Json = False,
) -> None:
    """Compile every GPU kernel at the published shapes: registers, spills, shared memory, occupancy, instructions.

    No GPU is needed. Exits 4 where a kernel does not compile, or spills registers without a reason that is written
    beside it; flash-linear-attention's are not judged.
    """
    from evalgate.kernels.gpu.builds import build_all
    from evalgate.kernels.gpu.published import FLA, MODULES

    chips = _chips(chip)
    _compiler_is_there(fla=fla)
    modules = [*MODULES, FLA] if fla else MODULES
    with _counted(len(modules) * len(chips)) as on_task:
        rows = build_all(modules, chips, on_task, jobs)
    wrong = [row for row in rows if row.fault and row.module != FLA]
    if json:
        built = [row._asdict() | {"op": _op(row), "fault": row.fault} for row in rows]
        console.emit({"ok": not wrong, "chips": chips, "kernels": built})
    else:
        verdict = f"{len(wrong)} of {len(rows)} builds are at fault" if wrong else f"{len(rows)} builds, all well"
        console.say(_table(rows), LEGEND, *_remarks(rows), verdict)
    raise typer.Exit(ExitCode.ERROR if wrong else ExitCode.PASS)


def _chips(asked: Sequence[str] | None) -> list[str]:
    from evalgate.kernels.gpu.chips import CHIPS

    for name in asked or ():
        if name not in CHIPS:
            raise UnknownNameError(f"no chip is called {name!r}{nearest(name, list(CHIPS))}")
    return list(dict.fromkeys(asked or CHIPS))


def _compiler_is_there(*, fla: bool) -> None:
    from importlib.util import find_spec

    if find_spec("triton") is None:
        raise UnsupportedError("the kernels are compiled by triton, which is not installed and is for Linux only")
    if fla and find_spec("fla") is None:
        raise UnsupportedError("--fla needs fla-core: install it with `pip install 'evalgate-longctx[fla]'`")


@contextmanager
def _counted(total: int) -> Iterator[Callable[[], None]]:
    """What is to be called after each module and chip, of which there are ``total``."""
    from evalgate.runner import Progress

    started, done = time.perf_counter(), 0
    with progress("compiling", "modules and chips") as report:

        def on_task() -> None:
            nonlocal done
            done += 1
            report(Progress(done, total, fresh=done, tokens=0, seconds=time.perf_counter() - started))

        yield on_task


def _op(row: Row) -> str:
    return row.module.rpartition(".")[2].removesuffix("_launches")


def _title(row: Row) -> str:
    """Name of the launch, with its op where it does not begin with it."""
    return row.name if row.name.startswith(_op(row)) else f"{_op(row)} {row.name}"


def _remarks(rows: Sequence[Row]) -> list[str]:
    """Faults, and reasons of spills, each once with the chips that it is of."""
    told: dict[str, list[str]] = {}
    for row in rows:
        if row.fault:
            told.setdefault(f"{_title(row)}: {row.fault}", []).append(row.chip)
        elif row.build and row.build["spilled"]:
            told.setdefault(f"{_title(row)} may spill: {row.spill_reason}", []).append(row.chip)
    return [f"{', '.join(chips)}: {words}" for words, chips in told.items()]


def _table(rows: Sequence[Row]) -> Table:
    """One line for each launch and chip; the name of a launch stands once."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("kernel", max_width=32, overflow="fold")
    for name in ("chip", "registers", "spilled", "shared", "warps", "matrix", "wide loads", "wide stores"):
        table.add_column(name)
    for before, row in zip([None, *rows], rows, strict=False):
        again = before is not None and _title(before) == _title(row)
        table.add_row("" if again else _title(row), row.chip, *_cells(row))
    return table


def _cells(row: Row) -> list[str]:
    if row.build is None:
        return ["fails"]
    build = row.build
    matrix = ", ".join(f"{count} {name}" for name, count in build["matrix"].items())
    return [
        str(build["registers"]),
        f"{build['spilled']} B" if build["spilled"] else "none",
        f"{build['shared'] / 1024:.1f} KiB",
        f"{build['warps']} ({build['occupancy']:.0%})",
        matrix or "none",
        _wide(build["loads"]),
        _wide(build["stores"]),
    ]


def _wide(widths: dict[str, int]) -> str:
    """``3/4``: how many of the loads or stores move at least 16 bytes a thread."""
    wide = sum(count for width, count in widths.items() if not width.isdigit() or int(width) >= 16)
    return f"{wide}/{sum(widths.values())}"
