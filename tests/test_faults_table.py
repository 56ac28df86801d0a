"""The table of faults that are put in by hand: each still names code that is there, and tests that exist."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def test_every_fault_can_be_planted(repository: Path) -> None:
    """Its code occurs exactly once, what takes its place is other code, and its tests are files."""
    spec = importlib.util.spec_from_file_location("plant_faults", repository / "tools" / "plant_faults.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tool  # a NamedTuple looks its module up
    spec.loader.exec_module(tool)
    assert len({fault.name for fault in tool.FAULTS}) == len(tool.FAULTS) > 30
    for fault in tool.FAULTS:
        assert (repository / fault.file).read_text(encoding="utf-8").count(fault.old) == 1, fault.name
        assert fault.new != fault.old, fault.name
        assert fault.tests, fault.name
        assert all((repository / test).is_file() for test in fault.tests), fault.name
