"""The engine: hybrid KDA + MLA models over token ids. It never sees text, files of results, or verdicts."""
