"""What the files of a run show: summary, checks, figures, page."""
