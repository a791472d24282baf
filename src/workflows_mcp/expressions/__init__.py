"""Evaluates the three expression languages, behind one interface.

    Dollar().template("Hello ${inputs.name}").evaluate({"inputs": {"name": "Ada"}})       # "Hello Ada"

`language.py` is the interface. `dollar.py`, `jinja/` and `javascript/` implement it; `shell/` quotes values
in commands; `patterns.py` runs regular expressions and `deadline.py` stops what runs too long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.lazy import exports

if TYPE_CHECKING:
    from workflows_mcp.expressions.dollar import Dollar, OldDollar
    from workflows_mcp.expressions.javascript.language import JavaScript, OldJavaScript
    from workflows_mcp.expressions.jinja.language import Jinja, OldJinja
    from workflows_mcp.expressions.jinja.templates import render, syntax_error
    from workflows_mcp.expressions.language import (
        KIND_NAMES,
        MISSING,
        UNSET,
        Code,
        Kinds,
        Language,
        Reference,
        Refusal,
        Scope,
        follow,
    )
    from workflows_mcp.expressions.patterns import compiled, search
    from workflows_mcp.expressions.shell.quoting import (
        problems,
        quoted_script,
        quoted_text,
        quoted_words,
        substitute,
    )
    from workflows_mcp.expressions.shell.syntax import scan

__all__ = [
    "KIND_NAMES",
    "MISSING",
    "UNSET",
    "Code",
    "Dollar",
    "JavaScript",
    "Jinja",
    "Kinds",
    "Language",
    "OldDollar",
    "OldJavaScript",
    "OldJinja",
    "Reference",
    "Refusal",
    "Scope",
    "compiled",
    "follow",
    "problems",
    "quoted_script",
    "quoted_text",
    "quoted_words",
    "render",
    "scan",
    "search",
    "substitute",
    "syntax_error",
]

__getattr__ = exports(
    __name__,
    {
        "dollar": "Dollar OldDollar",
        "javascript.language": "JavaScript OldJavaScript",
        "jinja.language": "Jinja OldJinja",
        "jinja.templates": "render syntax_error",
        "language": "Code KIND_NAMES Kinds Language MISSING Reference Refusal Scope UNSET follow",
        "patterns": "compiled search",
        "shell.quoting": "problems quoted_script quoted_text quoted_words substitute",
        "shell.syntax": "scan",
    },
)
