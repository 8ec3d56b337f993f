"""The built-in objectives, each in a file of its name; kofn_controller.policy.objective defines the type."""
