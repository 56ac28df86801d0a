"""Imports go down only, third-party packages have homes, and the judge starts light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOMS = ("gates", "kernels", "reports", "tasks")

GROUND = {"errors", "records", "state_record", "data_class"}
"""Under all."""

# What each part may import besides itself and the ground; the store stands on disk, tables, parts and manifest_file.
DOWN: dict[str, set[str]] = {
    "errors": set(),
    "records": set(),
    "state_record": set(),
    "data_class": set(),
    "redaction": set(),
    "stats": set(),
    "versioned": set(),
    "release": {"disk", "versioned"},
    "disk": set(),
    "tables": set(),
    "haystack_file": {"disk"},
    "manifest_file": {"disk", "versioned"},
    "parts": {"disk", "tables"},
    "store": {"disk", "manifest_file", "parts", "tables"},
    "kernels": set(),
    "engine": {"kernels"},
    "gates": {"stats", "versioned", "release", "store", "disk", "redaction"},
    "tasks": {"versioned", "release", "haystack_file"},
    "reports": {"gates", "stats", "store", "disk"},
    "backends": {"engine"},
    "capacity": {"backends", "engine", "gates", "stats"},
    "runner": {"tasks", "backends", "gates", "store", "versioned", "redaction"},
    "lm_eval_tasks": {"backends", "gates", "kernels", "runner", "tasks"},
    "doctor": {"tasks", "backends", "kernels", "gates", "store", "disk", "versioned"},
    "cli": {
        "capacity",
        "runner",
        "doctor",
        "kernels",
        "gates",
        "reports",
        "tasks",
        "store",
        "disk",
        "versioned",
        "release",
    },
    "__main__": {"cli"},
    "__init__": set(),
}

# Import name -> the parts that may use it.
HOMES: dict[str, set[str]] = {
    "cryptography": {"gates"},
    "datasets": {"tasks", "lm_eval_tasks"},
    "fla": {"kernels"},
    "httpx": {"backends"},
    "huggingface_hub": {"backends"},
    "jinja2": {"reports"},
    "junitparser": {"gates"},
    "lm_eval": {"backends", "lm_eval_tasks", "runner"},
    "markupsafe": {"reports"},
    "numpy": {"capacity", "kernels", "engine", "backends", "stats", "tasks", "runner"},
    "pandas": {"capacity", "runner"},
    "pyarrow": {"tables", "haystack_file"},
    "pypdf": {"tasks"},
    "pydantic": {"records", "state_record", "versioned", "manifest_file", "gates", "tasks", "engine", "backends"},
    "rfc8785": {"versioned"},
    "rich": {"cli", "reports"},
    "safetensors": {"engine", "backends"},
    "scipy": {"stats"},
    "securesystemslib": {"gates"},
    "tenacity": {"backends"},
    "tokenizers": {"engine", "backends"},
    "torch": {"capacity", "kernels", "engine", "backends"},
    "transformers": {"backends"},
    "triton": {"kernels"},
    "typer": {"cli"},
    "yaml": {"versioned"},
}

HEAVY = {"torch", "transformers", "pandas", "triton", "lm_eval", "datasets", "tokenizers", "safetensors"}


def modules(repository: Path) -> dict[str, Path]:
    """Every module of the package, by the part of it that it belongs to and its path."""
    package = repository / "evalgate"
    paths = [path for path in package.rglob("*.py") if not any(p.is_symlink() for p in path.parents)]
    found = {str(path.relative_to(package)): path for path in paths}
    for room in ROOMS:
        found |= {str(path.relative_to(repository)): path for path in (repository / room).rglob("*.py")}
    return found


def part_of(name: str) -> str:
    """``gates`` of ``gates/rules.py``; ``store`` of ``store.py``."""
    return name.partition("/")[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in a file, late ones too; ``from a import b`` names ``a.b``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; imports are absolute"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_every_part_has_its_place(repository: Path) -> None:
    """Every module belongs to a part that the import table names."""
    assert {part_of(name) for name in modules(repository)} <= set(DOWN)


def test_table_has_no_circle() -> None:
    """The table itself only goes down."""
    below = {part: targets | (GROUND if part not in GROUND else set()) for part, targets in DOWN.items()}
    while below:
        floor = {part for part, targets in below.items() if not targets & below.keys()}
        assert floor, f"a circle among {sorted(below)}"
        below = {part: targets for part, targets in below.items() if part not in floor}


def test_imports_go_down_only(repository: Path) -> None:
    """No module imports a part that the table does not put under it, not even inside a function."""
    wrong = []
    for name, path in modules(repository).items():
        part = part_of(name)
        allowed = DOWN.get(part, set()) | {part} | GROUND
        for line, target in imported(path):
            words = target.split(".")
            if words[0] == "evalgate" and words[1] not in {*allowed, "__version__"}:
                wrong.append(f"{name}:{line}: {part} must not import {target}")

    assert not wrong, "\n".join(wrong)


def test_ground_stands_on_nothing(repository: Path) -> None:
    """Errors import nothing of ours, records only errors, the record of a state only records."""
    ours = {
        name: {target.split(".")[1] for _, target in imported(path) if target.startswith("evalgate.")}
        for name, path in modules(repository).items()
        if part_of(name) in GROUND
    }

    assert ours["errors.py"] == set()
    assert ours["records.py"] <= {"errors"}
    assert ours["state_record.py"] <= {"records"}


def test_packages_stay_in_their_homes(repository: Path) -> None:
    """Every third-party package is imported only where its job is, and has a job."""
    wrong = []
    for name, path in modules(repository).items():
        for line, target in imported(path):
            top = target.split(".")[0]
            if top in sys.stdlib_module_names or top == "evalgate":
                continue
            if part_of(name) not in HOMES.get(top, set()):
                wrong.append(f"{name}:{line}: {part_of(name)} must not import {top}")

    assert not wrong, "\n".join(wrong)


def test_scipy_means_special_functions(repository: Path) -> None:
    """Of scipy only ``scipy.special`` is used, which loads in a third of the time that ``scipy.stats`` takes."""
    used = {target for path in modules(repository).values() for _, target in imported(path) if "scipy" in target}

    assert {".".join(target.split(".")[:2]) for target in used} <= {"scipy.special"}


def test_every_home_is_a_dependency(repository: Path) -> None:
    """Whatever the package may import is declared, or comes with something that is."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["fla"], *extras["sign"], *extras["pdf"]]
    declared = {line.replace(" ", "").split(";")[0] for line in lines}
    names = {"".join(c if c.isalnum() or c in "-_" else " " for c in line).split()[0] for line in declared}
    imports = {name.replace("-", "_").replace("pyyaml", "yaml").replace("fla_core", "fla") for name in names}

    assert set(HOMES) - imports == {"markupsafe"}, "markupsafe is jinja2's"


@pytest.mark.parametrize(
    "command", [["gate", "--help"], ["report", "--help"], ["state", "--help"], ["--help"], ["--version"]]
)
def test_command_line_starts_light(command: list[str]) -> None:
    """The judge's commands load neither torch, transformers nor pandas, nor what stands beside them."""
    code = (
        "import json, sys\n"
        "from evalgate.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    result = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    loaded = set(json.loads(result.stdout.splitlines()[-1]))
    assert loaded & (HEAVY | {"scipy", "pyarrow", "numpy", "jinja2", "securesystemslib", "cryptography"}) == set()


def named(tree: ast.Module) -> set[str]:
    """Every name that a module's top level binds."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def door(tree: ast.Module) -> list[str] | None:
    """``__all__`` of a module, if it has one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            listed: list[str] = ast.literal_eval(node.value)
            return listed
    return None


def test_doors_are_sorted(repository: Path) -> None:
    """Every ``__all__`` names things that are there, constants first, then classes, then functions, each by name."""
    doors = 0
    for name, path in modules(repository).items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        listed = door(tree)
        if listed is None:
            continue
        doors += 1
        assert listed == sorted(set(listed), key=lambda word: (not word.isupper(), not word[0].isupper(), word)), name
        assert set(listed) <= named(tree), name

    assert doors > 0
