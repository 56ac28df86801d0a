"""`evalgate doctor`: is this installation able to do its work?"""

from __future__ import annotations

import typer

from evalgate.cli import console
from evalgate.errors import ExitCode


def doctor(json: console.Json = False) -> None:
    """Check the installation, this machine, the embedded models and the locks of all released documents."""
    from evalgate.doctor import examine

    findings = examine()
    sick = [finding for finding in findings if finding.status == "failed"]
    if json:
        console.emit({"ok": not sick, "checks": [finding._asdict() for finding in findings]})
    else:
        from rich.table import Table
        from rich.text import Text

        styles = {"ok": "green", "failed": "bold red", "note": "yellow"}
        table = Table.grid(padding=(0, 2))
        for finding in findings:
            table.add_row(Text(finding.status, styles[finding.status]), finding.name, Text(finding.detail))
        console.say(table, f"{len(sick)} of {len(findings)} checks failed" if sick else "all is well")
    raise typer.Exit(ExitCode.ERROR if sick else ExitCode.PASS)
