"""A worker as a member of its job: its line to the controller and to its peers."""
