"""`evalgate capacity`: how many sessions fit, by profile, over the lengths that contexts really have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalgate.cli import console
from evalgate.errors import RefusedError

if TYPE_CHECKING:
    from evalgate.capacity import Drift, Lengths, Savings

PAGE = 64
MIB = 2**20


def capacity(
    model: Annotated[str, typer.Argument(help="Model whose sessions are counted; its config.json is enough.")],
    lengths: Annotated[
        Path | None, typer.Option(help="CSV or parquet file of real context lengths, one request a row.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="Its column of tokens.", show_default=False)] = None,
    gpu: Annotated[str | None, typer.Option(help="A GPU by name, such as h200.", show_default=False)] = None,
    gpus: Annotated[int, typer.Option(min=1, help="How many of them hold one copy of the model.")] = 1,
    memory: Annotated[
        str | None, typer.Option(help="Memory in place of a GPU's name, such as 141GB.", show_default=False)
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="What the weights take; the files' size where not given.", show_default=False)
    ] = None,
    share: Annotated[float, typer.Option(help="Part of what the weights leave that caches may fill.")] = 0.9,
    profiles: Annotated[str, typer.Option(help="Profiles to compare.")] = "full,state-int8,state-int4,kv-int8",
    dtype: Annotated[str, typer.Option(help="What sessions compute in: bf16 or fp32.")] = "bf16",
    snapshots: Annotated[int, typer.Option(min=0, help="Stored states that each session keeps beside its own.")] = 0,
    threshold: Annotated[
        int | None, typer.Option(help="Tokens up to which contexts are short; else 90% are.", show_default=False)
    ] = None,
    runs: Annotated[
        list[Path] | None, typer.Option("--run", help="A run whose recall is told beside its profile; repeatable.")
    ] = None,
    new: Annotated[
        Path | None, typer.Option(help="Lengths of today, held against those planned for.", show_default=False)
    ] = None,
    requests: Annotated[float | None, typer.Option(help="Requests a day, for what prefixes save.")] = None,
    shared: Annotated[int, typer.Option(help="First tokens that requests share.")] = 0,
    hit_rate: Annotated[float, typer.Option(help="Share of requests that find them stored.")] = 1.0,
    prefixes: Annotated[int, typer.Option(help="Different templates.")] = 1,
    price: Annotated[float | None, typer.Option(help="Price of a million prefilled tokens.")] = None,
    json: console.Json = False,
) -> None:
    """Reckon how many sessions of MODEL a machine holds, what each profile buys, and what has changed since."""
    from evalgate.capacity import drift, read_lengths, savings
    from evalgate.capacity.model import read_model

    if lengths is None:
        raise RefusedError("--lengths is missing: a file of the context lengths that requests really have")
    planned = read_lengths(lengths, column)
    folder, config = read_model(model)
    cache, taken = _machine(folder, gpu, gpus, memory, weights, share)
    names = [name.strip() for name in profiles.split(",") if name.strip()]
    rows = [_row(config, name, dtype, planned, cache, snapshots, threshold) for name in names]
    recalls = _recalls(runs or [])
    for row in rows:
        row["recall"] = recalls.get(row["profile"])
    body: dict[str, Any] = {
        "model": model,
        "lengths": _told(planned),
        "memory": {"cache_bytes": cache, "weights_bytes": taken},
        "profiles": rows,
    }
    if new is not None:
        today = read_lengths(new, column)
        body["drift"] = _drifted(drift(planned, today))
        body["today"] = [_row(config, name, dtype, today, cache, snapshots, threshold) for name in names]
    if requests is not None:
        body["savings"] = _saved(
            savings(planned, requests=requests, shared=shared, hit_rate=hit_rate, prefixes=prefixes, price=price)
        )
    console.emit(body) if json else console.say(*_lines(body))


def _machine(
    folder: Path, gpu: str | None, gpus: int, memory: str | None, weights: str | None, share: float
) -> tuple[int, int]:
    from evalgate.capacity import Machine
    from evalgate.capacity.model import gpu_memory, read_bytes, weights_in

    if (gpu is None) == (memory is None):
        raise RefusedError("name the machine as --gpu or as --memory, one of them")
    if not 0 < share <= 1:
        raise RefusedError(f"--share {share:g}: expected above 0 and at most 1")
    whole = gpu_memory(gpu) * gpus if gpu is not None else read_bytes(str(memory), "--memory")
    taken = weights_in(folder) if weights is None else read_bytes(weights, "--weights")
    return Machine(whole, taken, share).cache, taken


def _row(
    config: Any, name: str, dtype: str, lengths: Lengths, cache: int, snapshots: int, threshold: int | None
) -> dict[str, Any]:
    from evalgate.capacity import ceiling, pools
    from evalgate.capacity.model import profile_cost

    ref, cost = profile_cost(config, name, dtype)
    found = ceiling(cost, lengths, cache, snapshots=snapshots, page=PAGE)
    parts = pools(cost, lengths, cache, threshold or lengths.quantile(0.9), snapshots=snapshots, page=PAGE)
    sizes = {"kv_per_token": cost.kv_token, "fixed": cost.fixed, "live": cost.live, "snapshot": cost.snapshot}
    return {"profile": ref, **sizes, **found._asdict(), "pools": None if parts is None else parts._asdict()}


def _recalls(runs: list[Path]) -> dict[str, dict[str, float]]:
    """Profile -> recall of each band over all tasks and lengths of its run."""
    from evalgate.records import Outcome
    from evalgate.store import RunFolder

    found: dict[str, dict[str, float]] = {}
    for path in runs:
        run = RunFolder.open(path)
        manifest = run.verify()
        marks: dict[str, list[bool]] = {}
        for trial in run.trials():
            marks.setdefault(trial.band, []).append(trial.outcome is Outcome.CORRECT)
        recall = {band: sum(own) / len(own) for band, own in marks.items()}
        found[f"{manifest.profile.name}@{manifest.profile.version}"] = recall
    return found


def _told(lengths: Lengths) -> dict[str, Any]:
    from evalgate.capacity.lengths import SHOWN

    quantiles = {f"p{share * 100:g}": lengths.quantile(share) for share in SHOWN}
    return {"requests": len(lengths), "mean": round(lengths.mean, 1), **quantiles, "max": int(lengths.tokens[-1])}


def _drifted(found: Drift) -> dict[str, Any]:
    return {**found._asdict(), "reading": found.reading}


def _saved(found: Savings) -> dict[str, Any]:
    return {**found._asdict(), "share": found.share}


def _lines(body: dict[str, Any]) -> list[Any]:
    told, memory = body["lengths"], body["memory"]
    shape = ", ".join(f"{name} {told[name]:,}" for name in told if name not in ("requests", "mean"))
    lines: list[Any] = [
        f"{body['model']}: {told['requests']:,} requests, mean {told['mean']:,.0f} tokens, {shape}",
        f"weights {memory['weights_bytes'] / MIB:,.0f} MiB, left for sessions {memory['cache_bytes'] / MIB:,.0f} MiB",
        _table(body["profiles"]),
    ]
    if "drift" in body:
        moved = body["drift"]
        quantiles = ", ".join(f"{name} {old:,} -> {now:,}" for name, (old, now) in moved["quantiles"].items())
        test = f"PSI {moved['psi']:.3f} ({moved['reading']}), KS {moved['ks']:.3f} (p {moved['p_value']:.2g})"
        lines += [
            f"lengths of today: {quantiles}; {test}",
            *(
                f"  {row['profile']}: {old['sure']:,} sessions were planned, {row['sure']:,} fit today"
                for old, row in zip(body["profiles"], body["today"], strict=True)
            ),
        ]
    if "savings" in body:
        saved = body["savings"]
        money = "" if saved["money"] is None else f", {saved['money']:,.2f} of money"
        lines.append(
            f"a day: {saved['prefilled']:,.0f} tokens, {saved['saved']:,.0f} of them ({saved['share']:.1%}) from "
            f"stored prefixes{money}; a changed template costs {saved['template_change']:,.0f} once"
        )
    return lines


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("profile", "token", "fixed", "sessions: sure", "typical", "at the mean", "at p95", "apart", "recall")
    for row in rows:
        parts = row["pools"]
        apart = "-" if parts is None else f"{parts['short']:,} to {parts['threshold']:,} + {parts['long']:,}"
        recall = " / ".join(f"{value:.1%}" for value in row["recall"].values()) if row["recall"] else "-"
        sizes = (f"{row['kv_per_token']:,} B", f"{row['fixed'] / MIB:,.1f} MiB")
        counts = (f"{row[name]:,}" for name in ("sure", "typical", "mean", "p95"))
        table.add_row(row["profile"], *sizes, *counts, apart, recall)
    return table
