"""All-reduce: through the switch, a parameter server, a ring or gloo."""
