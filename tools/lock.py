"""Lock what is released: ``python tools/lock.py``

Writes the digest of every suite, profile and policy that has none yet into its ``lock.json``, and of every embedded
model's files into ``evalgate/assets/lock.json``. A digest that is there is never replaced: a released document that
changed is an error here too, and weights that were trained anew are locked after ``--retrained NAME``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from evalgate.cli.governance import kind_of
from evalgate.release import Kind, lock

ASSETS = Path(__file__).resolve().parent.parent / "evalgate" / "assets"


def lock_documents(kind: Kind[Any]) -> None:
    """Lock every version that is not locked yet, oldest first; raises as ``release.lock`` does."""
    library = kind.library
    for name in library.names():
        for version in library.versions(name):
            found = lock(kind, library.root / name / f"{version}.yaml")
            print(f"{library.kind} {found.document.ref} {found.document.digest[:12]}")


def lock_assets(retrained: str | None) -> None:
    """Lock the files of the embedded models; those of ``retrained`` anew."""
    path = ASSETS / "lock.json"
    locked: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if retrained is not None:
        locked = {name: digest for name, digest in locked.items() if not name.startswith(f"{retrained}/")}
    for file in sorted(file for folder in ASSETS.iterdir() if folder.is_dir() for file in folder.iterdir()):
        name = file.relative_to(ASSETS).as_posix()
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if locked.setdefault(name, digest) != digest:
            raise SystemExit(f"{name} changed after it was locked; put it back, or say --retrained {file.parent.name}")
    path.write_text(json.dumps(dict(sorted(locked.items())), indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Lock everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--retrained", metavar="NAME", help="embedded model whose files are new")
    arguments = parser.parse_args()
    for name in ("suite", "profile", "policy"):
        lock_documents(kind_of(name))
    lock_assets(arguments.retrained)


if __name__ == "__main__":
    main()
