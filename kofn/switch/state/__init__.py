"""What the control plane puts into a program: entries, profiles, value sets, meters."""
