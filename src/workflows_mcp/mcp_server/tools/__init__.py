"""The toolsets of this server: `core`, `memory`, `debug`. Each tool is a few lines over the service."""
