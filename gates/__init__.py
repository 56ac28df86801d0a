"""The gate: versioned policies and profiles, the rules that judge a run, and one verdict that everything shows."""
