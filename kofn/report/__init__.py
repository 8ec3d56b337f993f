"""Summary (summary.py), checks (checks.py), figures (drawings.py) and page (page.py) of a run, from its files."""
