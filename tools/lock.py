"""Lock what is released: ``python tools/lock.py``

Writes the digest of every suite, profile and policy that has none yet into its ``lock.json``, and of every embedded
model's files into ``evalgate/assets/lock.json``. A digest that is there is never replaced: a released document that
changed is an error here too, and weights that were trained anew are locked after ``--retrained NAME``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from evalgate.gates import policy, profile
from evalgate.tasks import suite
from evalgate.versioned import Document, Library, read_lock

ASSETS = Path(__file__).resolve().parent.parent / "evalgate" / "assets"


def write(path: Path, locked: dict[str, str]) -> None:
    """Write a lock file, sorted."""
    path.write_text(json.dumps(dict(sorted(locked.items())), indent=2) + "\n", encoding="utf-8")


def lock_documents(library: Library, load: Callable[[str], Document]) -> None:
    """Lock every version of a library that is not locked yet; raises TamperedError for one that changed."""
    for name in library.names():
        path = library.root / name / "lock.json"
        locked = read_lock(path) if path.is_file() else {}
        for version in library.versions(name):
            document = load(f"{name}@{version}")
            if version not in locked:
                locked[version] = document.digest
                print(f"locked {library.kind} {document.ref} {document.digest[:12]}")
        write(path, locked)


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
    write(path, locked)


def main() -> None:
    """Lock everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--retrained", metavar="NAME", help="embedded model whose files are new")
    arguments = parser.parse_args()
    for library, load in (
        (suite.LIBRARY, suite.load_suite),
        (profile.library(), profile.load_profile),
        (policy.library(), policy.load_policy),
    ):
        lock_documents(library, load)
    lock_assets(arguments.retrained)


if __name__ == "__main__":
    main()
