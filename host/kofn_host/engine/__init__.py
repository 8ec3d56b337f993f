"""The C thread that moves a worker's packets; pacing."""
