"""Renders Jinja templates over given variables, within limits.

    render("Hello {{ name }}", {"name": "Ada"}, seconds=5, max_chars=2_000_000)     # "Hello Ada"

Compiled templates are cached. Every failure is an ExpressionError with the line of the template; an undefined
name comes with the nearest spelling. Templates run in the sandbox (`sandbox.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateSyntaxError
from jinja2.exceptions import TemplateError
from jinja2.utils import missing

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.deadline import TookTooLong, call_within
from workflows_mcp.expressions.jinja.sandbox import MissingName, Sandbox, joined, largest, line_of
from workflows_mcp.limits import DEFAULT_LIMITS
from workflows_mcp.values import Value, did_you_mean, kind_of


def render(
    source: str,
    variables: Mapping[str, Value],
    *,
    strict: bool = True,
    seconds: float = DEFAULT_LIMITS.expression_seconds,
    max_chars: int = DEFAULT_LIMITS.expression_chars,
) -> str:
    """Render a template. Undefined names are errors if `strict`, else empty."""
    try:
        return call_within(seconds, _render, source, variables, strict, max_chars)
    except TookTooLong:
        setting = DEFAULT_LIMITS.setting("expression_seconds")
        raise ExpressionError(
            f"the template took longer than {seconds:g} seconds and was stopped",
            hint=f"shorten its loops, or raise {setting}",
        ) from None
    except TemplateSyntaxError as error:
        raise _at_line(source, error.lineno, f"the template cannot be read: {error.message}") from None
    except MissingName as error:
        raise _at_line(
            source, line_of(error), f"'{error.name}' does not exist", _what_exists(error, variables)
        ) from None
    except RecursionError:
        raise ExpressionError("the template is nested too deeply, or a macro calls itself") from None
    except TemplateError as error:
        raise _at_line(source, line_of(error), str(error)) from None
    except Exception as error:
        raise _at_line(source, line_of(error), f"{type(error).__name__}: {error}") from None


@lru_cache(maxsize=1024)
def syntax_error(source: str) -> ExpressionError | None:
    """The syntax error of a template, without rendering it; None if there is none."""
    try:
        _sandbox(True).parse(source)
    except TemplateSyntaxError as error:
        return _at_line(source, error.lineno, f"the template cannot be read: {error.message}")
    return None


def _render(source: str, variables: Mapping[str, Value], strict: bool, max_chars: int) -> str:
    largest.set(max_chars)
    template = _compiled(source, strict)
    return joined(template.root_render_func(_sandbox(strict).context(variables, template.blocks)))


@lru_cache(maxsize=2)
def _sandbox(strict: bool) -> Sandbox:
    return Sandbox(strict=strict)


MAX_TEMPLATES = 512
MAX_CHARS = 4_000_000
_templates: dict[tuple[str, bool], Template] = {}
"""The templates compiled last, at most `MAX_TEMPLATES` of `MAX_CHARS` in total.

There is no lock: rendering can be stopped at any point, and would never release it.
"""


def _compiled(source: str, strict: bool) -> Template:
    template = _templates.get((source, strict))
    if template is None:
        template = _templates[source, strict] = _sandbox(strict).from_string(source)
        for oldest in list(_templates)[:-1]:
            chars = sum(len(known) for known, _ in list(_templates))
            if len(_templates) <= MAX_TEMPLATES and chars <= MAX_CHARS:
                break
            _templates.pop(oldest, None)
    return template


def _at_line(source: str, line: int, message: str, hint: str = "") -> ExpressionError:
    lines = source.splitlines(keepends=True)
    offset = sum(len(text) for text in lines[: line - 1])
    shown = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    where = f"line {line} of the template"
    return ExpressionError(
        f"{where}, `{shown[:100]}`: {message}" if shown else f"{where}: {message}", hint=hint, offset=offset
    )


def _what_exists(error: MissingName, variables: Mapping[str, Any]) -> str:
    owner = variables if error.owner is missing else error.owner
    if isinstance(owner, Mapping):
        return did_you_mean(str(error.name), [str(name) for name in owner], what="there is")
    return f"its parent is {kind_of(owner)}, not an object"
