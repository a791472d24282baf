"""The keys with which a definition makes agents follow the process, for all dialects.

result: {type: object, required: [files], properties: {files: {type: array}}}
verify: ["{{ result.files | length > 0 }}", {command: "pytest -q", message: tests must pass}]
attempts: 3
allow_tools: [Edit, "Bash(pytest:*)"]
on_reject: {back_to: implement}                 # of a gate
budget: {agent_steps: 200, time: 4h}            # of a workflow, a call or a loop
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import msgspec

from workflows_mcp.dialects.keys import (
    Key,
    Keys,
    Kind,
    Path,
    Reader,
    Report,
    anything,
    condition,
    duration,
    keys,
    literal,
    object_schema,
    read_word,
    seconds,
    text,
    texts,
    unknown_keys,
    word,
)
from workflows_mcp.dialects.step_inputs import StepShape, check_step_inputs
from workflows_mcp.errors import Problem
from workflows_mcp.plan import (
    DEFAULT_ATTEMPTS,
    REJECTED,
    Budget,
    Call,
    Check,
    Do,
    Expr,
    Node,
    OnReject,
    Use,
    is_dynamic,
    is_object,
    outputs_of,
    properties_of,
    schema_problems,
)
from workflows_mcp.steps import WATCH_CHANGES, Step
from workflows_mcp.values import Value, did_you_mean, kind_and_value, shown

RESULT = "result"
"""The name of the result in its checks."""
CHECK_SECONDS = 600
"""The timeout of a command that checks a result, if the definition does not set it."""
_GROUPED = re.compile("[0-9]{1,3}(_[0-9]{3})+")
_RESULT_EXAMPLE = "e.g. result: {type: object, required: [files], properties: {files: {type: array}}}"


# ----------------------------------------------------------------------------------------------------
# result and verify


def _read_result(reader: Reader, given: Value, path: Path, uses: list[Use]) -> dict[str, Value] | None:
    if not isinstance(given, dict):
        reader.wrong_type("a JSON Schema", given, _RESULT_EXAMPLE, path)
        return None
    found = schema_problems(given)
    for inside, message in found:
        place = _existing(given, inside)
        hint = "a JSON Schema has keys such as type, properties, required, items, enum"
        reader.problem("bad_schema", f"'{path[-1]}' is no JSON Schema: {message}", hint, (*path, *place))
    return None if found else given


def _existing(given: Value, path: Path) -> Path:
    place: list[str | int] = []
    for part in path:
        if isinstance(given, dict) and part in given:
            given = given[str(part)]
        elif isinstance(given, list) and isinstance(part, int) and part < len(given):
            given = given[part]
        else:
            break
        place.append(part)
    return tuple(place)


_shell = Kind("name or list", {"type": ["string", "array"]})
_env = Kind("mapping", {"type": "object"})
_test = condition("result.ok")
CHECK = keys(
    Key(
        "command",
        text,
        "A command that the server runs; it must exit with 0.",
        same="test",
        required="command: pytest -q",
    ),
    Key(
        "test",
        _test,
        "An expression that must hold; `result` is the result.",
        same="command",
        required="test: …",
    ),
    Key("message", anything, "What to fix if it fails."),
    Key("timeout", seconds, "Seconds after which a command has failed.", str(CHECK_SECONDS)),
    Key("shell", _shell, "The program that runs the command, as for Shell.", "sh"),
    Key("working_dir", text, "The directory that the command runs in."),
    Key("env", _env, "Variables of its environment."),
)
_OF_COMMAND = ("command", "shell", "working_dir", "env")


def _read_verify(reader: Any, given: Value, path: Path, uses: list[Use]) -> tuple[Check, ...]:
    listed = given if isinstance(given, list) else [given]
    where = (lambda index: (*path, index)) if isinstance(given, list) else (lambda index: path)
    found = [_read_check(reader, it, where(index), uses) for index, it in enumerate(listed)]
    return tuple(check for check in found if check is not None)


def _read_check(reader: Any, given: Value, path: Path, uses: list[Use]) -> Check | None:
    if isinstance(given, str):
        test = _test.value(reader, given, path, uses)
        return Check(given.strip(), Expr(test, path, "condition"))
    if not isinstance(given, dict):
        hint = 'e.g. verify: ["result.files | length > 0", {command: pytest -q, message: tests must pass}]'
        message = f"a check is an expression, or a mapping with command or test, not {kind_and_value(given)}"
        reader.problem("wrong_type", message, hint, path)
        return None
    reader.problems += unknown_keys(given, CHECK, path, "a check")
    kinds = [name for name in ("command", "test") if given.get(name) is not None]
    if len(kinds) != 1:
        message = (
            "a check has a command or a test" if not kinds else "a check has a command or a test, not both"
        )
        reader.problem(
            "missing_key", message, "write each as an entry of its own: - {command: pytest -q}", path
        )
        return None
    note = given.get("message")
    if note is not None:
        uses += reader.references.in_value(note, (*path, "message"))
    message_expr = None if note is None else Expr(note, (*path, "message"))
    if kinds == ["test"]:
        test = _test.value(reader, given["test"], (*path, "test"), uses)
        return (
            None
            if test is None
            else Check(test, Expr(test, (*path, "test"), "condition"), message=message_expr)
        )
    do = _read_command(reader, given, path, uses)
    return Check(str(given["command"]).strip(), command=do, message=message_expr)


def _read_command(reader: Any, given: Mapping[str, Value], path: Path, uses: list[Use]) -> Do:
    """A command that checks a result: a Shell step of the server."""
    shell: Step = reader.registry.get("Shell")
    inputs = {name: given[name] for name in _OF_COMMAND if given.get(name) is not None}
    dynamic: set[str] = set()
    for name, value in inputs.items():
        if name in shell.code_inputs:
            refusals = partial(shell.refusals, name, inputs=inputs)
            uses += reader.references.in_code(value, (*path, name), refusals)
        else:
            uses += reader.references.in_value(value, (*path, name))
        if is_dynamic(value, reader.references.language):
            dynamic.add(name)
    reader.problems += check_step_inputs(StepShape(shell), inputs, dynamic, path, reader.document)
    limit = given.get("timeout")
    limit = CHECK_SECONDS if limit is None else seconds.value(reader, limit, (*path, "timeout"), uses)
    return Do(
        step="Shell",
        inputs={
            name: Expr(value, (*path, name), "code" if name in shell.code_inputs else "template")
            for name, value in inputs.items()
        },
        timeout=Expr(limit, (*path, "timeout")),
        config=Expr({WATCH_CHANGES: True}, path, "settings"),
        defaults=shell.output_defaults({}),
        may_fail=True,
    )


# ----------------------------------------------------------------------------------------------------
# gates, budgets and tools


class OnRejectRead(NamedTuple):
    then: OnReject = "fail"
    back_to: str = ""


def _read_on_reject(reader: Reader, given: Value, path: Path, uses: list[Use]) -> OnRejectRead:
    if not isinstance(given, dict):
        found = read_word(given, ("fail", "continue"), path, reader)
        return OnRejectRead("continue" if found == "continue" else "fail")
    reader.problems += unknown_keys(given, ON_REJECT, path, "'on_reject'")
    step = given.get("back_to")
    if isinstance(step, int | float):
        step = reader.document.written((*path, "back_to"))
    if not isinstance(step, str) or not step:
        hint = "name the step that runs again: on_reject: {back_to: implement}"
        reader.problem("missing_key", "'on_reject' needs 'back_to'", hint, path)
        return OnRejectRead()
    return OnRejectRead(back_to=step)


def _whole(least: int, example: str) -> Kind:
    """A whole number; in long ones `_` may stand between digits: 2_000_000."""
    schema: dict[str, Value] = {"type": "integer", "minimum": least}
    plain = literal("number", schema, f"a whole number of at least {least}", example)

    def read(reader: Reader, given: Value, path: Path, uses: list[Use]) -> Value:
        grouped = isinstance(given, str) and _GROUPED.fullmatch(given) is not None
        return plain.value(reader, int(given) if grouped else given, path, uses)

    text: dict[str, Value] = {"type": "string", "pattern": f"^{_GROUPED.pattern}$"}
    return Kind("number", {"anyOf": [schema, text]}, read)


BUDGET = keys(
    Key("agent_steps", _whole(0, "e.g. agent_steps: 200"), "How many steps agents may do, with repetitions."),
    Key("sub_agents", _whole(0, "e.g. sub_agents: 20"), "How many tasks may go to sub-agents."),
    Key(
        "tokens", _whole(0, "e.g. tokens: 2000000"), "How many tokens agents may use, as far as they report."
    ),
    Key("time", duration("e.g. time: 4h"), "How long new work may start: seconds, or `30m`, `4h`, `2d`."),
    Key(
        "on_exceeded",
        word("ask", "fail", "stop"),
        "`ask`: new work waits until a person allows more. `fail`: it fails. `stop`: the run is parked, too.",
        "ask",
    ),
    Key(
        "confirm_above",
        _whole(0, "e.g. confirm_above: 20"),
        "A person must confirm a loop that starts more sub-agents than this.",
    ),
)
ON_REJECT = keys(
    Key("back_to", Kind("id", {"type": "string"}), "The step that runs again.", required="back_to: …")
)


def _read_budget(reader: Reader, given: Value, path: Path, uses: list[Use]) -> Budget | None:
    if not isinstance(given, dict):
        reader.wrong_type("a mapping", given, "e.g. budget: {agent_steps: 200, time: 4h}", path)
        return None
    reader.problems += unknown_keys(given, BUDGET, path, "'budget'")
    found = {name: it for name, it in reader.values(BUDGET, given, path, uses).items() if it is not None}
    return Budget(**found)


_agents = " before the server accepts the result of an agent"
RESULT_KEY = Key(
    RESULT,
    Kind("JSON Schema", {"type": "object"}, _read_result),
    "The JSON Schema of the result; its properties are the outputs.",
)
VERIFY_KEY = Key(
    "verify",
    Kind("list of checks", {"type": ["array", "string", "object"]}, _read_verify),
    f"What must hold{_agents}: expressions, and `{{command, message}}`.",
)
ATTEMPTS_KEY = Key(
    "attempts",
    _whole(1, "e.g. attempts: 3"),
    "How many results `verify` may reject before the step fails.",
    str(DEFAULT_ATTEMPTS),
)
_TOOL = re.compile(r"\s*[^()\s]+\s*(?:\(.*\)\s*)?", re.S)
_tools = texts("a list of tools", "e.g. allow_tools: [Edit, 'Bash(pytest:*)']")


def _read_tools(reader: Reader, given: Value, path: Path, uses: list[Use]) -> tuple[str, ...]:
    found = _tools.value(reader, given, path, uses)
    for index, tool in enumerate([found] if isinstance(found, str) else found):
        if _TOOL.fullmatch(tool) is None:
            message = f"{shown(tool)} is no tool: write its name, or its name and a pattern"
            where = (*path, index) if isinstance(given, list) else path
            reader.problem("wrong_value", message, "e.g. Edit, Bash(pytest:*), mcp__github__*", where)
    return tuple([found] if isinstance(found, str) else found)


TOOLS_KEY = Key(
    "allow_tools",
    replace(_tools, read=_read_tools),
    "The tools that the agent may use meanwhile, if its client enforces that.",
)
ON_REJECT_KEY = Key(
    "on_reject",
    Kind(
        "word or mapping",
        {"anyOf": [{"enum": ["fail", "continue"]}, object_schema(ON_REJECT)]},
        _read_on_reject,
    ),
    "Of a gate: what follows a rejection: `fail`, `continue`, or `{back_to: STEP}`.",
    "fail",
)
BUDGET_KEY = Key(
    "budget",
    Kind("mapping", object_schema(BUDGET), _read_budget),
    "How much agents may do: `agent_steps`, `sub_agents`, `tokens`, `time`.",
)
OF_AGENTS = (RESULT_KEY, VERIFY_KEY, ATTEMPTS_KEY, TOOLS_KEY)
"""The keys of a step that an agent can perform."""
PROCESS: Keys = keys(*OF_AGENTS, ON_REJECT_KEY, BUDGET_KEY)
"""All of these keys."""


def keys_of_process(step: Step) -> tuple[Key, ...]:
    """The keys that a step of this type can have."""
    if step.performer == "human":
        return (ON_REJECT_KEY,)
    return OF_AGENTS if step.can_ask else ()


class Process(NamedTuple):
    """What the keys say; fields of the node."""

    result: dict[str, Value] | None = None
    verify: tuple[Check, ...] = ()
    attempts: int = DEFAULT_ATTEMPTS
    allow_tools: tuple[str, ...] | None = None
    on_reject: OnReject = "fail"
    back_to: str = ""
    budget: Budget | None = None


NO_PROCESS = Process()
"""Nothing is set."""


def process_of(values: Mapping[str, Any]) -> Process:
    """What the keys of a step say, from their values."""
    tools, rejected = values.get("allow_tools"), values.get("on_reject") or OnRejectRead()
    return Process(
        values.get(RESULT),
        values.get("verify") or (),
        values.get("attempts") or DEFAULT_ATTEMPTS,
        tools,
        rejected.then,
        rejected.back_to,
        values.get("budget"),
    )


def with_result(do: Do, process: Process, *, names_outputs: bool = False) -> Do:
    """A step whose outputs are those of its `result`."""
    schema = process.result
    if schema is None:
        return do
    outputs = outputs_of(schema)
    return msgspec.structs.replace(
        do,
        defaults=outputs,
        result_output="" if is_object(schema) else RESULT,
        documented=tuple(outputs) if names_outputs else (),
    )


def without_result(uses: Iterable[Use], at: Path, process: Process, reader: Reader) -> list[Use]:
    """The references without those to `result` in checks, which are checked here against its schema."""
    kept: list[Use] = []
    for use in uses:
        root, *rest = use.reference.path
        if use.path[len(at) : len(at) + 1] != ("verify",) or root != RESULT:
            kept.append(use)
            continue
        problem = unknown_field(use, rest, process.result)
        if problem is not None:
            reader.report(problem)
    return kept


def unknown_field(use: Use, rest: list[str | int], schema: Mapping[str, Value] | None) -> Problem | None:
    """The problem of a reference to a field that a result never has."""
    if schema is None or not rest or not is_object(schema) or not properties_of(schema):
        return None
    known = properties_of(schema)
    if (
        rest[0] in known
        or isinstance(schema.get("additionalProperties"), dict)
        or "patternProperties" in schema
    ):
        return None
    hint = did_you_mean(str(rest[0]), known, what="it has")
    message = f"{use.reference}: the result has no field '{rest[0]}'"
    return Problem("undefined", message, hint, use.path, use.reference.offset)


def check_process(
    process: Process, do: Any, given: Mapping[str, Value], at: Path, reader: Reader, what: str
) -> None:
    """Reports keys that have no meaning for an operation; `given` are the keys of the block."""
    by = do.by if isinstance(do, Do) else ""
    step = do.step if isinstance(do, Do) else "a call" if isinstance(do, Call) else "this"
    for key in PROCESS:
        if given.get(key) is None:
            continue
        if key == "on_reject" and by != "human":
            message, hint = f"'on_reject' is for a gate, and this {what} is none", "write it at the gate"
        elif key == "budget" and not isinstance(do, Call) and given.get("for_each") is None:
            message = f"'budget' is for a workflow, a call or a loop, and this {what} is one step"
            hint = "write it at the workflow, or set attempts and timeout here"
        elif key in ("verify", "attempts", "allow_tools", RESULT) and by != "agent" and do != Do(""):
            performer = "a person decides" if by == "human" else "the server runs it"
            message = f"'{key}' is for a step that an agent performs: of {step}, {performer}"
            hint = "check its outputs in a step after it" if by == "server" else "remove it"
        elif key == "attempts" and not process.verify and given.get("verify") is None:
            message = "'attempts' counts results that 'verify' rejects, and there is no 'verify'"
            hint = "add verify, or write retry: N for attempts after a failure"
        else:
            continue
        reader.problem("unknown_key", message, hint, (*at, key), on_key=True)


def check_back_to(node: Node, known: Mapping[str, bool], what: str) -> Problem | None:
    """The problem of `back_to`; `known` are the ids of steps, and whether each comes before the gate."""
    target = node.back_to
    path = (*node.at, "on_reject", "back_to")
    if not target:
        return None
    if node.for_each is not None:
        message = "a gate that asks once for each item cannot send a step back"
        return Problem("bad_target", message, "remove for_each, or write on_reject: continue", path)
    if target not in known or target == node.id:
        hint = did_you_mean(
            target, [name for name, before in known.items() if before], what=f"{what}s before it"
        )
        return Problem("bad_target", f"there is no {what} '{target}' before the gate '{node.id}'", hint, path)
    if not known[target]:
        message = f"{what} '{target}' does not come before the gate '{node.id}', so it cannot run again"
        hint = (
            "name one that the gate depends on" if what == "block" else "name one that stands above the gate"
        )
        return Problem("bad_target", message, hint, path)
    return None


def gates_in_order(nodes: Sequence[Node], report: Report) -> None:
    """Reports gates of a sequence that send back what does not stand above them."""
    for index, node in enumerate(nodes):
        known = {other.id: position < index for position, other in enumerate(nodes)}
        if node.back_to and (problem := check_back_to(node, known, "step")) is not None:
            report(problem)


def choices_without_reject(do: Do, draft_at: Path, given: Mapping[str, Value]) -> Problem | None:
    """The problem of a gate with `on_reject` whose choices have no rejection."""
    choices = do.inputs.get("choices")
    listed = choices.source if choices is not None else None
    if given.get("on_reject") is None or not isinstance(listed, list) or REJECTED in listed:
        return None
    message = f"'on_reject' is about the choice '{REJECTED}', which this gate does not offer"
    return Problem(
        "wrong_value", message, f"add {REJECTED} to choices", (*draft_at, "on_reject"), on_key=True
    )
