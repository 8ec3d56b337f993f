"""kofn's own data planes. A plug-in's data plane is named `module:Name`."""
