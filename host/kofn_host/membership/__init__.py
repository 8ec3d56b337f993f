"""A worker's membership in its job: connections to the controller and to peers."""
