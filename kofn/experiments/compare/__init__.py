"""`kofn compare`: all methods to reduce gradients on the same network, model, seed and stragglers, in one report."""
