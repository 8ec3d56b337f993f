"""One run: network, processes, trials, events, live view."""
