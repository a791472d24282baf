"""The terminal: every command is a few lines over the service. Answers go to stdout, all else to stderr."""
