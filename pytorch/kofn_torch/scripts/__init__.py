"""Programs that `kofn compare` runs."""
