"""`--policy-ref REF`: the policy as a git ref holds it, so that a change cannot lower the bar that judges it.

The repository is that of the current folder. A path is taken as it is spelt, from that folder: no link of the working
tree, which the change may have made, leads to another file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from evalgate.errors import RefusedError, UnknownNameError, nearest

if TYPE_CHECKING:
    from evalgate.gates.policy import Policy
    from evalgate.gates.verdict import PolicySource

PolicyRef = Annotated[
    str | None,
    typer.Option(
        help="Read the policy from this git ref, such as origin/main, and not from the files of the change that is "
        "judged; a NAME is looked for as policies/NAME/VERSION.yaml in it.",
        show_default=False,
    ),
]


class Chosen(NamedTuple):
    """The policy to judge by, and where it was read from if that was a git ref."""

    policy: Policy
    source: PolicySource | None


def choose(policy: str, ref: str | None) -> Chosen:
    """Load ``policy`` (name, ``name@version`` or file), from ``ref`` if one is given.

    Raises as ``load_policy``; RefusedError where there is no git, repository or ref, UnknownNameError where the ref
    holds no such policy, TamperedError where it is not what the lock file of that ref says.
    """
    from evalgate.gates.policy import Policy, library, load_policy
    from evalgate.gates.verdict import PolicySource
    from evalgate.versioned import parse, parse_lock, parse_yaml

    if ref is None:
        return Chosen(load_policy(policy), None)
    commit = _commit(ref)
    files = _git("ls-tree", "-r", "--name-only", "--full-tree", "-z", commit, doing="list its files").split("\0")
    is_file = policy.endswith((".yaml", ".yml")) or "/" in policy
    path = _spelt(policy, ref, files) if is_file else _named(policy, ref, files)
    where = f"{path} at {ref}"
    document = parse(Policy, parse_yaml(_blob(commit, path), where), where)
    if not is_file and (document.name, document.version) != (PurePosixPath(path).parent.name, PurePosixPath(path).stem):
        raise RefusedError(f"{where}: says it is {document.ref}, but its place says otherwise; name the file")
    lock = str(PurePosixPath(path).with_name("lock.json"))
    if lock in files:
        library().hold_against(document, parse_lock(_blob(commit, lock), f"{lock} at {ref}"))
    return Chosen(document, PolicySource(ref=ref, commit=commit, path=path))


def _commit(ref: str) -> str:
    found = _run("rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}")
    if found.returncode == 0 and "ambiguous" in found.stderr:
        raise RefusedError(
            f"--policy-ref {ref} is ambiguous: say refs/heads/{ref}, refs/tags/{ref} or another full ref"
        )
    if found.returncode == 0:
        return found.stdout.strip()
    inside = _run("rev-parse", "--is-shallow-repository")
    if inside.returncode:
        raise RefusedError(
            f"--policy-ref {ref}: the current folder is in no git repository that can be read "
            f"({_first(inside.stderr)}); run it in a checkout, or leave --policy-ref out"
        )
    branch = ref.removeprefix("origin/")
    if inside.stdout.strip() == "true":
        raise RefusedError(
            f"--policy-ref {ref}: this clone is shallow and lacks it; fetch it first with `git fetch --depth=1 origin "
            f"+{branch}:refs/remotes/origin/{branch}` and say origin/{branch}, or clone in full (fetch-depth: 0)"
        )
    raise RefusedError(f"--policy-ref {ref}: no such ref here; fetch it first with `git fetch origin {branch}`")


def _spelt(policy: str, ref: str, files: list[str]) -> str:
    prefix = _git("rev-parse", "--show-prefix", doing="find the current folder in it").strip("\n")
    path = os.path.normpath(prefix + os.path.relpath(policy))
    if path.startswith("../"):
        raise UnknownNameError(f"policy file {policy} is outside the repository, so {ref} cannot hold it")
    if path not in files:
        near = nearest(path, [file for file in files if file.endswith((".yaml", ".yml"))][:200])
        raise UnknownNameError(f"policy file {path} is not in {ref}{near}; merge it there first, or name another")
    return path


def _named(policy: str, ref: str, files: list[str]) -> str:
    from evalgate.versioned import NAME_PATTERN, VERSION_PATTERN, by_number

    name, _, version = policy.partition("@")
    found: dict[str, list[PurePosixPath]] = {}
    names = []
    for path in map(PurePosixPath, files):
        in_place = path.suffix == ".yaml" and path.parent.parent.name == "policies"
        if in_place and re.match(VERSION_PATTERN, path.stem) and re.match(NAME_PATTERN, path.parent.name):
            names.append(path.parent.name)
            if path.parent.name == name:
                found.setdefault(path.stem, []).append(path)
    if not found:
        raise UnknownNameError(
            f"{ref} has no policies/{name}/VERSION.yaml{nearest(name, sorted(set(names)))}; name a file, or leave "
            "--policy-ref out for a policy that comes with evalgate"
        )
    version = version or max(found, key=by_number)
    places = found.get(version, [])
    if len(places) != 1:
        fault = f"has no policy {name}@{version}" if not places else f"has {name}@{version} in several folders"
        known = ", ".join(str(path) for paths in found.values() for path in paths)
        raise UnknownNameError(f"{ref} {fault}: found {known}; name one of these files")
    return str(places[0])


def _blob(commit: str, path: str) -> str:
    return _git("cat-file", "blob", f"{commit}:{path}", doing=f"read {path}")


def _git(*arguments: str, doing: str) -> str:
    done = _run(*arguments)
    if done.returncode:
        raise RefusedError(f"git cannot {doing} ({_first(done.stderr)}); fetch the ref in full and try again")
    return done.stdout


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("git")
    if program is None:
        raise RefusedError("--policy-ref needs git, and there is none on PATH; install it, or leave --policy-ref out")
    return subprocess.run(  # noqa: S603 - git by its full path; a ref follows --end-of-options
        [program, *arguments],
        env=os.environ | {"LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


def _first(stderr: str) -> str:
    return stderr.strip().splitlines()[0] if stderr.strip() else "it says nothing"
