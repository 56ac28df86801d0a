"""evalgate: a long-context evaluation harness and deploy gate for models that compress their context."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
