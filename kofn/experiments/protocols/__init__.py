"""`kofn experiment protocols`: protocols for sums in the network, under loss, a slow worker and few slots."""
