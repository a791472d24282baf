"""`list`, `info`, `validate`, `schema` and `plugin`: commands about workflow files. They run nothing."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

from workflows_mcp.cli.run import terminal_settings, workflow_arguments
from workflows_mcp.cli.terminal import (
    COMPLETED,
    FAILED,
    WRONG_USE,
    UnreadableFile,
    err,
    out,
    print_json,
    print_table,
    problem_as_json,
    read_text_file,
)
from workflows_mcp.errors import Place, Problem, RequestError
from workflows_mcp.runs import Service
from workflows_mcp.values import to_json

_UNREADABLE = "unreadable"


def list_command(options: argparse.Namespace) -> int:
    tags = [tag.strip() for tag in options.tags.split(",") if tag.strip()]
    found = Service.open(terminal_settings(runs=False)).list_workflows(
        tags=tags, query=" ".join(options.query)
    )
    if options.json:
        print_json({"workflows": [_listed(summary) for summary in found]})
        return 0
    if not found:
        err().line("no matching workflows" if tags or options.query else "no workflows")
        return 0
    rows = [(it.name, _short_source(it.source), _first_sentence(it.description)) for it in found]
    print_table(out(), rows, ("bold", "dim"))
    broken = [summary for summary in found if summary.problems]
    if broken:
        err().line(f"{len(broken)} cannot run: workflows-mcp validate {broken[0].file} shows the problems")
    return 0


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s", " ".join(text.split()), maxsplit=1)[0]


def _short_source(source: str) -> str:
    """Return the source of a workflow, relative to the working directory or the home directory."""
    path = Path(source)
    for base, prefix in ((Path.cwd(), "."), (Path.home(), "~")):
        if path.is_absolute() and path.is_relative_to(base):
            return f"{prefix}/{path.relative_to(base)}"
    return source


def info_command(options: argparse.Namespace) -> int:
    service = Service.open(terminal_settings(runs=False))
    arguments = workflow_arguments(options.workflow)
    if "file" in arguments:
        info = service.file_info(arguments["file"])
    else:
        name = options.workflow
        info = {**service.workflow_info(name), "file": service.inspector.file_of(name)}
    if options.json:
        print_json(info)
    else:
        _print_info(info)
    return 0


def validate_command(options: argparse.Namespace) -> int:
    service = Service.open(terminal_settings(runs=False))
    results = [(file, _problems(service, file)) for file in options.files]
    every = [problem for _, problems in results for problem in problems]
    wrong = sum(not problem.warning for problem in every)
    code = WRONG_USE if any(it.code == _UNREADABLE for it in every) else FAILED if wrong else COMPLETED
    if options.json:
        files = [
            {
                "file": file,
                "valid": all(problem.warning for problem in problems),
                "problems": [problem_as_json(problem) for problem in problems],
            }
            for file, problems in results
        ]
        print_json({"valid": not wrong, "files": files})
        return code
    terminal = out()
    for file, problems in results:
        if not problems:
            terminal.line(f"{terminal.mark('completed')} {file}")
        for problem in problems:
            terminal.line(str(problem))
    if wrong:
        err().line(f"{wrong} problem{'s' if wrong != 1 else ''}")
    return code


def _problems(service: Service, file: str) -> list[Problem]:
    try:
        text = read_text_file(file)
    except UnreadableFile as why:
        message, hint = f"the file cannot be read: {why}", _file_hint(service, file)
        return [Problem(_UNREADABLE, message, hint, place=Place(file, 1, 1))]
    return service.validate(text, file="<stdin>" if file == "-" else file)


def _file_hint(service: Service, name: str) -> str:
    """Suggest what to validate instead of a directory, a workflow name or a missing file."""
    if Path(name).is_dir():
        return f"it is a directory; validate its files: workflows-mcp validate {Path(name, '*.yaml')}"
    if name in service.inspector.names():
        file = service.inspector.file_of(name)
        return f"it is the name of a workflow; validate its file: workflows-mcp validate {file}"
    return "check the path; workflows-mcp info NAME shows the file of a workflow"


def _listed(summary: Any) -> dict[str, Any]:
    listed = {
        "name": summary.name,
        "description": summary.description,
        "dialect": summary.dialect,
        "source": summary.source,
        "file": summary.file,
        "tags": list(summary.tags),
    }
    if summary.problems:
        listed["problems"] = [problem_as_json(problem) for problem in summary.problems]
    return listed


def _print_info(info: dict[str, Any]) -> None:
    terminal = out()
    terminal.line(
        terminal.paint(info["workflow"], "bold") + (f" {info['version']}" if "version" in info else "")
    )
    if info.get("description"):
        terminal.line(info["description"].rstrip())
    built_in = "built-in, " if info["source"] == "built-in" else ""
    file = info.get("file", info["source"])
    terminal.line(terminal.paint(f"{info['dialect']} dialect, {built_in}from {file}", "dim"))
    schema = info["inputs"]
    if schema["properties"]:
        terminal.line("\ninputs")
        print_table(terminal, [_input(name, spec, schema) for name, spec in schema["properties"].items()])
    terminal.line("\nsteps")
    rows = []
    for step in info["steps"]:
        after = f"after {', '.join(step['depends_on'])}" if "depends_on" in step else ""
        condition = f"if {step['condition']}" if "condition" in step else ""
        kind = f"calls {step['calls']}" if "calls" in step else step["type"]
        kind += {"agent": ", by the agent", "human": ", by a person"}.get(step.get("by", ""), "")
        rows.append(("  " + step["id"], kind, "  ".join(part for part in (after, condition) if part)))
    print_table(terminal, rows)
    if info["outputs"]:
        terminal.line("\noutputs")
        print_table(terminal, [(f"  {name}", _text(value)) for name, value in info["outputs"].items()])
    if "asks" in info:
        terminal.line("\nwaits for an answer at: " + ", ".join(question["step"] for question in info["asks"]))
    if "agent_tools" in info:
        terminal.line("\nthe agent needs the tools: " + ", ".join(info["agent_tools"]))
    if "needs" in info:
        terminal.line("\nneeds: " + ", ".join(need.replace("_", " ") for need in info["needs"]))
    if "secrets" in info:
        missing = info.get("missing_secrets", ())
        named = (f"{name} (missing)" if name in missing else name for name in info["secrets"])
        terminal.line("\nsecrets: " + ", ".join(named))
    for block in info.get("forbidden", ()):
        terminal.line(f"\nmay not run here: {block}")


def _input(name: str, spec: dict[str, Any], schema: dict[str, Any]) -> tuple[str, str, str]:
    if name in schema["required"]:
        kind = "required"
    else:
        kind = f"default {to_json(spec['default'])}" if "default" in spec else "optional"
    return f"  {name}", f"{spec.get('type', 'any')}, {kind}", spec.get("description", "")


def _text(value: Any) -> str:
    return " ".join(value.split()) if isinstance(value, str) else to_json(value)


# `schema` and `plugin`


def schema_command(options: argparse.Namespace) -> int:
    schema = Service.open(terminal_settings(runs=False)).workflow_schema()
    if options.output is None:
        print_json(schema)
        return COMPLETED
    path = Path(options.output)
    _write_whole(path, to_json(schema, indent=2) + "\n")
    err().line(f"wrote {path}. Put this line first in a workflow, so that editors use it:")
    err().line(f"# yaml-language-server: $schema={path.resolve()}")
    return COMPLETED


def _write_whole(path: Path, text: str) -> None:
    """Replace a file atomically: an editor that watches it never reads half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RequestError(f"cannot write {path}: {error.strerror}", hint="choose another --output") from None


def plugin_command(_: argparse.Namespace) -> int:
    """Print the directory of the Claude Code plugin."""
    from workflows_mcp.mcp_server import plugin_directory

    found = plugin_directory()
    if found is None:
        raise RequestError("this installation has no plugin", hint="install workflows-mcp from a wheel")
    print(found)
    return 0
