"""The thread that moves a worker's packets, in C; pacing."""
