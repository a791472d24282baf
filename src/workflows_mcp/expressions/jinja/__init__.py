"""Jinja2, the language of the stateful dialect and of `RenderTemplate`."""
