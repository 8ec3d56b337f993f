"""The data planes of kofn: `module:Name` names another one."""
