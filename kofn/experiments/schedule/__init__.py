"""`kofn experiment schedule`: the gain of ordering a gradient's pieces."""
