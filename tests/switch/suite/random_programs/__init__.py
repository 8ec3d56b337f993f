"""Random programs in p4c's JSON, and random packets for them."""
