"""Programs that `kofn compare` and `kofn experiment zero` run."""
