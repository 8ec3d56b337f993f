"""`kofn experiment schedule`: the gain of sending a gradient's pieces in another order."""
