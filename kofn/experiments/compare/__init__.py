"""`kofn compare`: every way to reduce gradients on the same network, model, seed and stragglers, in one report."""
