"""The command line. Importing it loads nothing heavy: each command brings what it needs when it is called."""

from evalgate.cli.start import entry, main

__all__ = ["entry", "main"]
