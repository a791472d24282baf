"""Engines keep runs durable and perform the commands of the machine. Each passes the same suite."""
