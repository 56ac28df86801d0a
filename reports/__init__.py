"""Reports: what a person reads after a run, an HTML page and a terminal summary.

``page.report_run`` is the entry.
Everything flows one way: records and verdict -> frozen views with every number and word ready -> template.
"""
