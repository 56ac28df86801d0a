"""Does the wheel hold what the checkout holds? ``python tools/check_wheel.py dist/*.whl``

A checkout without links builds a wheel whose rooms are silently missing, and a data file that no pattern names is
silently left out; this opens the wheel and compares it with the folders, file by file.
"""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

ROOMS = ("gates", "kernels", "reports", "tasks")
PACKAGE = "evalgate"


def expected(root: Path) -> dict[str, Path]:
    """Name in the wheel -> file in the checkout, for every file of the package and its rooms."""
    found: dict[str, Path] = {}
    for folder, prefix in [(root / PACKAGE, PACKAGE), *((root / room, f"{PACKAGE}/{room}") for room in ROOMS)]:
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
            linked = any((folder / parent).is_symlink() for parent in [inside, *inside.parents][:-1])
            if path.is_file() and not hidden and not linked:
                found[f"{prefix}/{inside.as_posix()}"] = path
    return found


def faults(wheel: Path, root: Path) -> list[str]:
    """Every way in which the wheel is not the checkout; empty where it is."""
    wanted = expected(root)
    with zipfile.ZipFile(wheel) as archive:
        held = {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}
    told = [
        f"{top} lies at the top of the wheel; only {PACKAGE} may"
        for top in sorted({name.partition("/")[0] for name in held})
        if top != PACKAGE and not top.endswith(".dist-info")
    ]
    told += [f"room {room} has no files" for room in ROOMS if not any(n.startswith(f"{PACKAGE}/{room}/") for n in held)]
    told += [f"{name} is missing from the wheel" for name in sorted(wanted.keys() - held.keys())]
    strangers = {name for name in held if name.startswith(f"{PACKAGE}/")} - wanted.keys()
    told += [f"{name} is in the wheel but not in the checkout" for name in sorted(strangers)]
    told += [
        f"{name} differs from the checkout's"
        for name in sorted(wanted.keys() & held.keys())
        if hashlib.sha256(held[name]).digest() != hashlib.sha256(wanted[name].read_bytes()).digest()
    ]
    return told


def main(arguments: list[str]) -> int:
    """Check one wheel against the checkout that this file lies in."""
    if len(arguments) != 1:
        print("usage: python tools/check_wheel.py WHEEL", file=sys.stderr)
        return 2
    wheel = Path(arguments[0])
    root = Path(__file__).resolve().parent.parent
    told = faults(wheel, root)
    for line in told:
        print(f"{wheel.name}: {line}", file=sys.stderr)
    if told:
        return 1
    size = wheel.stat().st_size / 1e6
    print(f"{wheel.name}: {len(expected(root))} files, {size:.1f} MB, rooms {', '.join(ROOMS)}: as in the checkout")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
