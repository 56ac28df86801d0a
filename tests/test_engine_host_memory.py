"""Memory of the machine and of its container: the least of all limits counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalgate.engine.host_memory import available_memory

MIB = 1 << 20


def write(root: Path, files: dict[str, str]) -> Path:
    """A root with /proc/meminfo of 1,000 MiB available, and ``files``."""
    for name, text in ({"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {1000 * 1024} kB\n"} | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 1000),
        ({"proc/self/cgroup": "0::/\n"}, 1000),
        (
            {
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/box/memory.max": "max\n",
                "sys/fs/cgroup/pod/box/memory.current": f"{MIB}\n",
                "sys/fs/cgroup/pod/memory.max": f"{400 * MIB}\n",
                "sys/fs/cgroup/pod/memory.current": f"{100 * MIB}\n",
            },
            300,
        ),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": f"{4000 * MIB}\n",
                "sys/fs/cgroup/memory.current": "0\n",
            },
            1000,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/box\n4:memory:/box\n",
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{200 * MIB}\n",
                "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{150 * MIB}\n",
            },
            50,
        ),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": f"{MIB}\n",
                "sys/fs/cgroup/memory.current": f"{2 * MIB}\n",
            },
            0,
        ),
    ],
    ids=["no-groups", "no-limit", "limit-of-a-parent", "limit-above", "version-1", "over-the-limit"],
)
def test_the_least_limit_counts(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    """The machine's own memory, and what each control group above the process leaves."""
    assert available_memory(write(tmp_path, files)) == expected * MIB


def test_this_machine_says_something() -> None:
    """More than nothing and less than all of its address space."""
    assert 0 < available_memory() < 1 << 50
