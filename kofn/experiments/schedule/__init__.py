"""`kofn experiment schedule`: what the order of a gradient's pieces is worth."""
