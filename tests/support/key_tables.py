"""The tables of keys in the pages of the dialects: `make tables` writes them from the tables that read the keys.

<!-- keys: stateful goto -->
| key | value | meaning |
...
<!-- end of keys -->
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from workflows_mcp.dialects import (
    document,
    graph,
    keys,
    process,
    reactive,
    reactive_state,
    reactive_steps,
    stateful,
)
from workflows_mcp.dialects.keys import Key, Keys

PAGES = Path(__file__).resolve().parents[2] / "docs"
MARKED = re.compile(r"(<!-- keys: (\S+) (\S+) -->\n).*?(<!-- end of keys -->)", re.S)
SEE = {
    "graph document": {
        "prompt": "mcp.md#prompts",
        "elicitation": "toolsets.md#asking-the-user-directly",
        "secrets": "security.md#secrets",
        "budget": "process.md#budgets",
        "fail_fast": "#failures",
        "inputs": "#inputs",
        "blocks": "#blocks",
    },
    "graph input": {"validation": "stateful-dialect.md#inputs"},
    "graph block": {
        "type": "#step-types",
        "condition": "#conditions",
        "on_timeout": "#timeouts",
        "retry": "#retries",
        "for_each": "#for-each",
        "on_interrupt": "#interruptions",
        "on_failure": "#failures",
        "outputs": "#shell",
        "result": "process.md#result",
        "verify": "process.md#verify",
        "attempts": "process.md#verify",
        "allow_tools": "process.md#allow_tools",
        "on_reject": "process.md#gates",
        "budget": "process.md#budgets",
    },
    "stateful document": {
        "prompt": "mcp.md#prompts",
        "elicitation": "toolsets.md#asking-the-user-directly",
        "secrets": "security.md#secrets",
        "budget": "process.md#budgets",
        "inputs": "#inputs",
        "state_access": "#state",
        "steps": "#steps",
        "tasks": "#tasks",
    },
    "stateful step": {
        "needs_state": "#state",
        "on_timeout": "graph-dialect.md#timeouts",
        "retry": "graph-dialect.md#retries",
    },
    "stateful foreach": {"task": "#tasks", "budget": "process.md#budgets"},
    "stateful workflow": {"budget": "process.md#budgets"},
    "reactive document": {
        "name": "#files-and-names",
        "prompt": "mcp.md#prompts",
        "elicitation": "toolsets.md#asking-the-user-directly",
        "secrets": "security.md#secrets",
        "budget": "process.md#budgets",
        "imports": "#imports",
        "inputs": "#inputs",
        "default_state": "#first-values",
        "state_schema": "#state",
        "steps": "#steps",
        "sub_agent_tasks": "#tasks",
        "error_handling": "#when-something-fails",
        "on_resume": "#continuing-later",
        "on_high_context_usage": "#a-full-context",
    },
    "reactive include_workflow": {
        "state_update": "#changing-it",
        "on_error": "#a-step",
        "budget": "process.md#budgets",
    },
    "reactive parallel_foreach": {
        "sub_agent_task": "#tasks",
        "on_sub_agent_error": "#a-task",
        "budget": "process.md#budgets",
    },
    "process step": {
        "result": "#result",
        "verify": "#verify",
        "attempts": "#verify",
        "allow_tools": "#allow_tools",
        "on_reject": "#gates",
        "budget": "#budgets",
    },
}
"""Where a page says more about a key."""


def tables() -> dict[str, Keys]:
    """Every table by the page that it is in, and its name there."""
    found = {
        "graph document": graph.WORKFLOW,
        "graph input": document.INPUT,
        "graph block": graph.BLOCK,
        "graph retry": keys.RETRY,
        "stateful document": stateful.WORKFLOW,
        "stateful input": document.INPUT,
        "stateful validation": document.VALIDATION,
        "stateful step": keys.keys(*stateful.ABOUT.values(), *stateful.AFTER),
        "reactive document": reactive.WORKFLOW,
        "reactive step": reactive_steps.ABOUT,
        "reactive change": reactive_steps.CHANGE,
        "reactive computed": reactive_state.COMPUTED,
        "reactive failing": reactive_steps.FAILING,
        "reactive task_errors": reactive_steps.TASK_ERRORS,
        "reactive error_handling": reactive_steps.ERROR_HANDLING,
        "reactive error_collection": reactive_steps.COLLECTION,
        "reactive on_resume": reactive.ON_RESUME,
        "process step": process.PROCESS,
        "process check": process.CHECK,
        "process budget": process.BUDGET,
    }
    for dialect in (stateful.STATEFUL, reactive_steps.REACTIVE):
        for kind, control in dialect.control.items():
            own = {name: key for name, key in control.keys.items() if dialect.about.get(name) != key}
            if own:
                found[f"{dialect.name} {kind}"] = own
    return found


def rendered(table: Keys, see: Mapping[str, str]) -> str:
    lines = ["| key | value | meaning |", "| --- | --- | --- |"]
    lines += [_row(key, see.get(key.name)) for key in table.values()]
    if "name" in table and "version" in table:
        lines.append("| `x-…` | anything | Your own keys, e.g. for anchors. |")
    return "\n".join(lines) + "\n"


def _row(key: Key, see: str | None) -> str:
    what = key.kind.what
    if key.required:
        what += ", required"
    elif key.default:
        what += f"; {key.default if ' ' in key.default else f'`{key.default}`'} by default"
    link = f" See [{_title(see)}]({see})." if see else ""
    return f"| `{key.name}` | {what} | {key.description}{link} |"


def _title(link: str) -> str:
    return link.partition("#")[2].replace("-", " ")


def updated(text: str) -> str:
    """A page with the tables of today."""
    every = tables()

    def replaced(match: re.Match[str]) -> str:
        name = f"{match[2]} {match[3]}"
        return f"{match[1]}{rendered(every[name], SEE.get(name, {}))}{match[4]}"

    return MARKED.sub(replaced, text)


def pages() -> list[Path]:
    return [*sorted(PAGES.glob("*-dialect.md")), PAGES / "process.md"]


if __name__ == "__main__":
    for page in pages():
        page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
