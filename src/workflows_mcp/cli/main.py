"""The command line: its commands, their options, and the module that runs each.

    workflows-mcp run greet --input who=Ada      # cli/run.py: run_command(options)

`workflows-mcp` without a command serves MCP over stdio. The module of a command is imported when the command
runs, so that help and usage errors are fast, and only `serve` imports `mcp`.

    exit codes: 0 completed · 1 failed or cancelled · 2 usage error · 3 waiting for an answer ·
    130 interrupted
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from workflows_mcp import __version__
from workflows_mcp.cli.terminal import FAILED, INTERRUPTED, WRONG_USE

_EPILOG = """\
Run `workflows-mcp COMMAND --help` for the options of a command, with examples.

exit codes: 0 completed, 1 failed or cancelled, 2 usage error, 3 waiting for an answer, 130 interrupted
Without a command, workflows-mcp serves MCP over stdin and stdout, for an MCP client."""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors as JSON with `--json`, and accepts only whole option names.

    An abbreviation that is unique today could be ambiguous after the next release.
    """

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **{"allow_abbrev": False, **named})
        self.commands: Mapping[str, Parser] = {}

    def error(self, message: str) -> NoReturn:
        if "--json" in sys.argv[1:]:
            from workflows_mcp.cli.terminal import print_json

            print_json({"error": {"code": "usage", "message": message, "hint": self.format_usage().strip()}})
        self.print_usage(sys.stderr)
        self.exit(WRONG_USE, f"{self.prog}: {message}\n")


def _count(text: str) -> int:
    try:
        if (number := int(text)) >= 1:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, not {text!r}")


def _days(text: str) -> float:
    try:
        if 0 <= (number := float(text)) < math.inf:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected a number of days, not {text!r}")


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)i?b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a size such as 500MB or 2GB, not {text!r}")
    return int(float(match[1]) * 1000 ** " kmg".index(match[2] or " "))


def _seconds(text: str) -> float:
    try:
        if 0 < (number := float(text)) < math.inf:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected seconds, more than 0, not {text!r}")


Argument = tuple[tuple[str, ...], dict[str, Any]]
"""What `argparse` takes for an argument of a command: its names, and its options."""


def positional(name: str, metavar: str, help: str | None = None, **more: Any) -> Argument:
    return (name,), {"metavar": metavar, "help": help, **more}


def option(name: str, metavar: str | None, help: str, *short: str, **more: Any) -> Argument:
    return (name, *short), {"metavar": metavar, "help": help, **more}


def flag(name: str, help: str, *short: str) -> Argument:
    return (name, *short), {"action": "store_true", "help": help}


class Command(NamedTuple):
    """A command: `module` of this package has the function that runs it, `NAME_command(options)`."""

    name: str
    module: str
    help: str
    examples: Sequence[str]
    arguments: Sequence[Argument] = ()
    exclusive: Sequence[Argument] = ()
    """Options that exclude each other."""
    defaults: Mapping[str, Any] = {}
    """Options that the function reads, and this command does not have."""


PERFORMER = option(
    "--agent",
    "NAME",
    "let this agent of the settings perform all steps of agents: claude, codex, or agents.NAME",
)
JSON = flag("--json", "print exactly one JSON object on stdout")
QUIET = flag("--quiet", "print questions, failures and outputs, but no progress", "-q")
AGENT = (
    option("--answers", "FILE", "answers by step id, in YAML or JSON; a list answers repeated questions"),
    flag("--yes", "run requested commands without asking", "-y"),
    PERFORMER,
    QUIET,
    JSON,
)
RUN_ID = positional("run", "RUN_ID")
DEFINITION = option(
    "--definition",
    "NAME|FILE",
    "continue with this changed definition; steps that keep their results must be unchanged",
)
LIMIT = option("--limit", "N", "list at most N", type=_count, default=20)

COMMANDS = (
    Command(
        "serve",
        "serve",
        "serve MCP over stdin and stdout (the default), or over HTTP",
        ("serve --toolsets core,graph", "serve --http 127.0.0.1:8000"),
        (
            option(
                "--toolsets",
                "A,B",
                "toolsets to serve: core (the default), graph, stateful, reactive, memory, debug, or all",
            ),
            option(
                "--workflow-tools",
                "A,B",
                "workflows to serve as tools: names, patterns such as release-*, tag:NAME, or all "
                "(without built-in ones)",
            ),
            option(
                "--engine", "NAME", "where runs are stored: embedded (a local file, the default) or temporal"
            ),
            flag("--read-only", "serve only tools that read runs, and run no steps"),
            option("--task", "ID", "serve only this task of a run, e.g. to its sub-agent"),
            option(
                "--http",
                "HOST:PORT",
                "serve streamable HTTP, by default on 127.0.0.1:8000; port 0 picks a free port",
                nargs="?",
                const="",
            ),
        ),
    ),
    Command(
        "run",
        "run",
        "run a workflow and print its outputs",
        (
            "run greet --input who=Ada --input times:=2",
            "run release.yaml --answers answers.yaml --yes --json",
        ),
        (
            positional("workflow", "NAME|FILE", "a workflow name, a YAML file, or - for stdin"),
            option(
                "--input",
                "KEY=VALUE",
                "set an input; use KEY:=JSON for a value that is not text",
                "-i",
                action="append",
                default=[],
            ),
            option("--inputs-file", "FILE", "read inputs from a JSON file, or - for stdin"),
            option("--timeout", "SECONDS", "cancel the run if it takes longer than this", type=_seconds),
            *AGENT,
        ),
    ),
    Command(
        "answer",
        "run",
        "answer a question of a run, and continue the run",
        ("answer wf_1f2e yes", "answer wf_1f2e --step deploy --fail 'no access to the cluster'"),
        (
            RUN_ID,
            positional("value", "VALUE", "text or JSON; prompted for if left out", nargs="?"),
            option("--step", "ID", "the step to answer, if several steps ask"),
            option("--fail", "MESSAGE", "report that the step could not be done, and why"),
            option("--comment", "TEXT", "what to say with a decision at a gate"),
            *AGENT,
        ),
    ),
    Command(
        "budget",
        "budget",
        "allow agents to do more; only a person at a terminal can",
        ("budget wf_1f2e agent_steps=300 time=8h", "budget wf_1f2e --allow"),
        (
            RUN_ID,
            positional("limits", "NAME=NUMBER", "agent_steps, sub_agents, tokens or time", nargs="*"),
            flag("--allow", "start the sub-agents that wait for a confirmation"),
            option("--of", "ADDRESS", "the block whose budget it is; default: the run", default=""),
            *AGENT,
        ),
    ),
    Command(
        "cancel",
        "run",
        "cancel a run and stop its running steps",
        ("cancel wf_1f2e --reason 'wrong branch'",),
        (RUN_ID, option("--reason", None, "a reason to store with the run", default=""), JSON),
    ),
    Command(
        "retry",
        "run",
        "re-run only the failed or cancelled steps, in a new run",
        ("retry wf_1f2e", "retry wf_1f2e --definition .workflows/release.yaml"),
        (
            positional("run", "RUN_ID", "a run, or a task whose sub-agent is gone: the task starts again"),
            DEFINITION,
            *AGENT,
        ),
    ),
    Command(
        "fork",
        "run",
        "re-run one step and the steps after it, in a new run",
        ("fork wf_1f2e build",),
        (
            RUN_ID,
            positional("step", "STEP_ID"),
            flag("--keep", "keep the old run if it is waiting; do not cancel it"),
            DEFINITION,
            *AGENT,
        ),
    ),
    Command(
        "checkpoints",
        "inspect",
        "list checkpoints",
        ("checkpoints --workflow release", "checkpoints chk_wf_1f2e_7 --delete"),
        (
            positional(
                "id", "RUN_ID", "list only this run; with a checkpoint id, show its details", nargs="?"
            ),
            option("--workflow", "NAME", "list only runs of this workflow"),
            LIMIT,
            flag("--delete", "delete this checkpoint; its run is unchanged"),
            JSON,
        ),
    ),
    Command(
        "resume",
        "run",
        "continue a parked run, or continue from a checkpoint",
        ("resume wf_1f2e",),
        (
            positional("checkpoint", "RUN_ID|CHECKPOINT"),
            positional("value", "RESPONSE", "the answer, if it waits for one", nargs="?"),
            PERFORMER,
            QUIET,
            JSON,
        ),
        defaults={"answers": None, "yes": False},
    ),
    Command("runs", "inspect", "list recent runs", ("runs --limit 5",), (LIMIT, JSON)),
    Command(
        "show",
        "inspect",
        "show a run, block by block",
        ("show wf_1f2e --follow",),
        (RUN_ID, flag("--follow", "show progress until the run ends or waits"), JSON),
    ),
    Command(
        "report",
        "inspect",
        "report what a run did, who did it, and whether its journal was changed",
        (
            "report wf_1f2e",
            "report wf_1f2e --format html --output report.html",
            "report wf_1f2e --expect 9f86d081884c7d65",
        ),
        (
            RUN_ID,
            option("--format", "FORMAT", "md (the default), html or json", choices=("md", "html", "json")),
            option("--output", "FILE", "write to a file instead of stdout", "-o"),
            option("--expect", "HASH", "the proof of an earlier answer: fail if the journal does not fit it"),
            JSON,
        ),
    ),
    Command(
        "prune",
        "inspect",
        "delete old runs that have ended",
        ("prune --dry-run", "prune --days 7 --size 500MB"),
        (
            flag("--dry-run", "list the runs to delete, and delete nothing"),
            option("--days", "N", "delete runs that ended more than N days ago", type=_days),
            option("--keep", "N", "keep only the newest N ended runs", type=_count),
            option("--size", "SIZE", "shrink the store to SIZE, e.g. 500MB", type=_bytes),
            JSON,
        ),
    ),
    Command(
        "list",
        "definitions",
        "list the available workflows",
        ("list git --tags release",),
        (
            positional("query", "WORD", "list only workflows that contain every word", nargs="*"),
            option("--tags", "A,B", "list only workflows with all these tags", default=""),
            JSON,
        ),
    ),
    Command(
        "info",
        "definitions",
        "show the inputs, steps and outputs of a workflow",
        ("info greet",),
        (positional("workflow", "NAME|FILE"), JSON),
    ),
    Command(
        "validate",
        "definitions",
        "check workflow files and report all problems",
        ("validate .workflows/*.yaml",),
        (positional("files", "FILE", "a YAML file, or - for stdin", nargs="+"), JSON),
    ),
    Command(
        "schema",
        "definitions",
        "print the JSON Schema of workflow files, for editors",
        ("schema --output .workflows/schema.json",),
        (option("--output", "FILE", "write to a file instead of stdout", "-o"),),
    ),
    Command("plugin", "definitions", "print the directory of the Claude Code plugin", ()),
    Command(
        "trust",
        "trust",
        "trust the settings and MCP servers of a directory",
        ("trust", "trust --list", "trust --remove ~/src/project"),
        (positional("directory", "DIR", "default: the working directory", nargs="?"), JSON),
        exclusive=(
            flag("--list", "list the trusted directories"),
            flag("--remove", "stop trusting the directory"),
        ),
    ),
    Command(
        "hook",
        "serve",
        "relay an event of a client's hooks to a running server (see docs/clients.md)",
        ("hook < event.json",),
    ),
    Command("worker", "temporal", "run a Temporal worker until it is stopped", ("worker",)),
    Command(
        "temporal-dev",
        "temporal",
        "run a Temporal development server on this machine",
        ("temporal-dev --ui",),
        (
            option("--port", "N", "the port (default: 7233)", type=int, default=7233),
            option("--db", "FILE", "the database file; default: next to the store of runs"),
            flag("--ui", "serve the web UI too, at the port + 1000"),
        ),
    ),
)


def build_parser() -> Parser:
    parser = Parser(
        prog="workflows-mcp",
        description="Run workflows for LLM agents, and from the terminal.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"workflows-mcp {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for it in COMMANDS:
        examples = "\n".join(f"  workflows-mcp {example}" for example in it.examples)
        command = commands.add_parser(
            it.name,
            help=it.help,
            description=f"{it.help[0].upper()}{it.help[1:]}.",
            epilog=f"example{'s' if len(it.examples) > 1 else ''}:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(module=it.module, **it.defaults)
        group = command.add_mutually_exclusive_group() if it.exclusive else command
        for names, options in it.exclusive:
            group.add_argument(*names, **options)
        for names, options in it.arguments:
            command.add_argument(*names, **options)
    parser.commands = commands.choices
    return parser


def _refuse(parser: Parser, left: Sequence[str]) -> NoReturn:
    """Reject unknown arguments, with a suggestion."""
    from workflows_mcp.values import nearest

    message = f"unrecognized arguments: {' '.join(left)}"
    options = sorted(set(re.findall(r"--[a-z][a-z-]*", parser.format_help())))
    suggestion = nearest(left[0].partition("=")[0], options)
    if suggestion is not None:
        message += f"; did you mean {suggestion}?"
    if "--input" in options and not re.match(r"-[^-]", left[0]):
        name, value = left[0].removeprefix("--"), left[1] if len(left) > 1 else "VALUE"
        message += f"; write inputs as --input {name if '=' in name else f'{name}={value}'}"
    parser.error(message)


def _open_closed_streams() -> None:
    """Open /dev/null for a standard stream that the parent process closed (`>&-`).

    Otherwise the next file that is opened would get its descriptor, and our output would go into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115


def main(arguments: Sequence[str] | None = None) -> int:
    _open_closed_streams()
    parser = build_parser()
    options, left = parser.parse_known_args(arguments)
    if len(left) == 1 and getattr(options, "value", "") is None and not left[0].startswith("-"):
        options.value = left.pop()  # argparse cannot parse `answer ID --step X VALUE`
    if left:
        _refuse(parser.commands.get(options.command, parser), left)
    if options.command is None:
        options = parser.parse_args(["serve"])
    from importlib import import_module

    from workflows_mcp.cli.terminal import print_error
    from workflows_mcp.errors import WorkflowsError
    from workflows_mcp.runs import raise_descriptor_limit

    raise_descriptor_limit()
    try:
        name = f"{options.command.replace('-', '_')}_command"
        command = getattr(import_module(f"workflows_mcp.cli.{options.module}"), name)
        return int(command(options))
    except WorkflowsError as error:
        print_error(error, as_json=getattr(options, "json", False))
        return WRONG_USE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone: exit silently, also when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return WRONG_USE
    except OSError as error:
        print(f"workflows-mcp: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
