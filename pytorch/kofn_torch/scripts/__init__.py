"""Programs that experiments run (examples/experiments/compare-torch.toml)."""
