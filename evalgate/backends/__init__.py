"""Backends: one port to whatever answers questions. They know prompts and answers, never scores or verdicts."""
