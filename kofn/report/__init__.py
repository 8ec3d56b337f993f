"""Summary, checks, figures and page of a run, from its files."""
