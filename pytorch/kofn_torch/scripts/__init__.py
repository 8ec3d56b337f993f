"""Programs that experiments run: compare-torch.toml, and `kofn experiment zero`."""
