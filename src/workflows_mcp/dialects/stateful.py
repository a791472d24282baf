"""The stateful dialect: compiles a sequence of `steps` that declare the state they read.

    name: greet
    inputs:
      who: {type: string, default: world}
    initial_state: {greeting: Hello}
    steps:
      - id: say
        type: shell
        needs_state: ["greeting"]
        command: 'echo "{{ state.greeting }}, {{ inputs.who }}"'
        output_to: greeted

Each entry of `tasks` is a separate plan, which a foreach runs for each of its items. All problems are
reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workflows_mcp.dialects.document import read_header, read_inputs, task_description, workflow_keys
from workflows_mcp.dialects.keys import (
    ON_FAILURE,
    ON_INTERRUPT,
    Key,
    Keys,
    Kind,
    Path,
    Reader,
    Report,
    Schema,
    anything,
    chosen,
    condition,
    flag,
    items,
    keys,
    not_null,
    number,
    parallel,
    retry,
    seconds,
    unknown_keys,
    word,
)
from workflows_mcp.dialects.layout import FlatLayout, Spot
from workflows_mcp.dialects.process import BUDGET_KEY, RESULT_KEY, gates_in_order, keys_of_process
from workflows_mcp.dialects.stateful_access import Surroundings, check_access, check_order
from workflows_mcp.dialects.step_inputs import StepShape
from workflows_mcp.dialects.steps import (
    AFTER_TIMEOUT,
    NAMED,
    ON_LIMIT,
    RUN_ON,
    Control,
    Dialect,
    StepDraft,
    StepReader,
    call_of,
    called,
    check_children,
    duplicate_id,
    every,
    given_inputs,
    no_steps,
    on_limit,
    operation,
    read_id,
    refuse_exit_codes,
    steps,
    wait,
)
from workflows_mcp.dialects.yaml.source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.limits import Limits
from workflows_mcp.plan import (
    LANGUAGES,
    SEMANTICS,
    Branch,
    Call,
    Do,
    Expr,
    ForEach,
    Jump,
    Node,
    Operation,
    Plan,
    ReferenceReader,
    Return,
    SetState,
    Steps,
    Use,
    check_items,
    is_dynamic,
    secrets_in,
)
from workflows_mcp.settings import STATE_ACCESS
from workflows_mcp.steps import ANY_EXIT, Step, StepRegistry
from workflows_mcp.values import Value, did_you_mean, kind_of, nearest, shown

# ----------------------------------------------------------------------------------------------------
# Kinds of values of this dialect.


_FIELD = re.compile(r"[^\W\d_][\w-]*")
_FIELD_PATTERN: Schema = {
    "pattern": r"^[^\s!-,./:-@\[-^`{-~0-9_-][^\s!-,./:-@\[-^`{-~]*$",
    "patternErrorMessage": "a field is a name that starts with a letter",
}
_TAKEN = frozenset(["state", "inputs"])
_AGENT = re.compile(r"@[a-z0-9-]+")


def _is_field(given: Value, path: Path, reader: Reader, *, on_key: bool = False) -> bool:
    """Whether a name can be a field of the state; reports it otherwise."""
    if isinstance(given, str) and _FIELD.fullmatch(given) and given not in _TAKEN:
        return True
    hint = "a name of letters, digits, '_' and '-' that starts with a letter, e.g. build_result"
    if isinstance(given, str) and given in _TAKEN:
        hint = f"'{given}' already has a meaning in expressions: choose another name"
    reader.problem("bad_id", f"{shown(given)} cannot be a field of the state", hint, path, on_key=on_key)
    return False


def _read_field(reader: Reader, given: Value, path: Path, uses: list[Use]) -> str:
    return given if _is_field(given, path, reader) else ""


def _read_needs_state(reader: Reader, given: Value, path: Path, uses: list[Use]) -> tuple[str, ...]:
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return tuple(dict.fromkeys(given))
    example = 'e.g. needs_state: ["files", "config"], or ["*"]'
    reader.wrong_type("a list of fields", given, example, path)
    return ("*",)  # so that it causes no further problems


def _read_updates(reader: Reader, given: Value, path: Path, uses: list[Use]) -> dict[str, Value]:
    if not isinstance(given, dict) or not given:
        what = "is empty" if given == {} else f"must be a mapping, not {kind_of(given)}"
        hint = 'e.g. updates: {count: "{{ state.count + 1 }}"}'
        reader.problem("wrong_type", f"'updates' {what}", hint, path)
        return {}
    uses += reader.references.in_value(given, path)
    return {name: it for name, it in given.items() if _is_field(name, (*path, name), reader, on_key=True)}


def _read_agent(reader: Reader, given: Value, path: Path, uses: list[Use]) -> str:
    if isinstance(given, str) and _AGENT.fullmatch(given):
        return given
    hint = "'@' and then lower-case letters, digits and '-', e.g. @code-reviewer, or @task"
    if isinstance(given, str):
        spelt = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")
        hint = f"write @{spelt}: {hint}" if spelt else hint
    reader.problem("bad_agent", f"{shown(given)} cannot be the name of an agent", hint, path)
    return ""


def _read_target(reader: Reader, given: Value, path: Path, uses: list[Use]) -> str | None:
    if isinstance(given, int | float):
        given = reader.document.written(path)
    if isinstance(given, str):
        return given
    reader.wrong_type("the id of a step", given, "e.g. target: improve-quality", path)
    return None


# ----------------------------------------------------------------------------------------------------
# The keys of workflows, tasks and steps.


_test = condition('"{{ state.approved }}"')
_field = Kind("name", {"type": "string", **_FIELD_PATTERN}, _read_field)
_needs_state = Kind("list", {"type": "array", "items": {"type": "string"}}, _read_needs_state, null=False)
_updates: Schema = {"type": "object", "minProperties": 1, "propertyNames": _FIELD_PATTERN}
_agent = Kind("name", {"type": "string", "pattern": "^@[a-z0-9-]+$"}, _read_agent)
_items = items('e.g. items: "{{ state.files }}" or items: [linux, macos]')
_sequential = flag("true: one item after the other", null=False)
_task = Kind("name", {"type": "string"})
_target = Kind("id", {"type": ["string", "number", "boolean"]}, _read_target)
_most = number(
    1, "the maximum number of jumps; then it fails, or the next steps run (on_limit: continue)", whole=True
)
_tasks: Schema = {"type": "object", "additionalProperties": {"$ref": "#/$defs/task"}}
_negated = 'put steps into it, or negate the test: if: "{{ not … }}"'

WORKFLOW = workflow_keys(
    "stateful",
    "`initial_state`, `tasks`, `needs_state` and some step types imply it",
    Key(
        "initial_state",
        Kind("mapping", {"type": "object"}),
        "The fields of the state and their initial values, used as written.",
    ),
    Key("state_access", word(*STATE_ACCESS), "`warn`: reading an undeclared field is only a warning."),
    Key("steps", not_null(steps("step")), "The steps, which run one after the other."),
    Key("tasks", Kind("mapping", _tasks), "The tasks that `foreach` runs for items, by name."),
)
TASK = keys(*chosen(WORKFLOW, "description", "inputs", "initial_state", "steps").values(), RESULT_KEY)
_EVERY_STEP = (
    *NAMED,
    Key("needs_state", _needs_state, 'The fields of the state that it can read; `["*"]`: all.'),
)
_OUTPUT = Key("output_to", _field, "The field of the state that stores its result.")
_MODIFIERS = (
    Key("error_to", _field, "The field of the state that stores its error: message, code and step."),
    Key("when", not_null(_test), "It runs only if this holds; if not, `output_to` keeps its value."),
    Key("on_error", not_null(word(*ON_FAILURE)), "Whether the workflow continues after its failure.", "fail"),
)
ABOUT = keys(*_EVERY_STEP, _OUTPUT, *_MODIFIERS)
"""The keys of every step, except return."""
AFTER = (
    Key("timeout", seconds, "Seconds after which it is stopped and fails."),
    AFTER_TIMEOUT,
    Key("retry", retry, "When a failure is retried, and how often."),
)
_ON_INTERRUPT = Key("on_interrupt", not_null(word(*ON_INTERRUPT)), "What happens if a crash interrupts it.")


def keys_beside(step: Step) -> Keys:
    """The keys of a step besides the inputs of its type."""
    interrupt = (_ON_INTERRUPT,) if step.can_run else ()
    run_on = (RUN_ON,) if step.can_run and step.can_ask else ()
    return keys(*ABOUT.values(), *AFTER, *interrupt, *run_on, *keys_of_process(step))


# ----------------------------------------------------------------------------------------------------
# The control steps of this dialect, which are operations of the plan.


Values = dict[str, Any]
Given = dict[str, Value]


def _read_condition(reader: StepReader, draft: StepDraft, values: Values, step: Given) -> None:
    draft.test, draft.then, draft.otherwise = values.get("if"), values.get("then", []), values.get("else", [])


def _read_set_state(reader: StepReader, draft: StepDraft, values: Values, step: Given) -> None:
    if step.get("updates") is None:
        misspelt = next((key for key in step if nearest(key, ["updates"])), "")
        draft.sets = tuple(step[misspelt]) if isinstance(step.get(misspelt), dict) else ()
    elif values["updates"]:
        draft.sets = tuple(values["updates"])
        updates = values["updates"].items()
        draft.do = SetState({name: draft.expr(value, "updates", name) for name, value in updates})


def _read_foreach(reader: StepReader, draft: StepDraft, values: Values, step: Given) -> None:
    given, limit = values.get("items", []), values.get("max_parallel")
    if values.get("sequential"):
        limit = 1
    check_children(given, limit, draft, reader, ", or sequential: true")
    at_once = draft.expr_at(limit, "max_parallel")
    draft.for_each = ForEach(draft.expr(given, "items"), at_once, agent=values.get("agent", ""))
    draft.task = reader.task(step.get("task"), (*draft.at, "task"))
    task = f"{reader.workflow}#{draft.task}" if draft.task == step.get("task") else None
    timeout = draft.expr_at(values.get("timeout"), "timeout")
    draft.do = Call(draft.expr_at(task, "task"), timeout=timeout, of_item=True)


def _read_goto(reader: StepReader, draft: StepDraft, values: Values, step: Given) -> None:
    draft.target = values.get("target")
    if "max_iterations" in values:  # a missing one has been reported
        on_limit(reader, draft, values)


CONTROL: dict[str, Control] = {
    "condition": Control(
        "Runs the steps of `then` if a test holds, otherwise those of `else`.",
        keys(
            *ABOUT.values(),
            Key("if", _test, "The test.", required='if: "{{ state.ready }}"'),
            Key(
                "then",
                steps("step", _negated),
                "The steps if it holds.",
                required="then:, and below it the steps",
            ),
            Key("else", no_steps("step"), "The steps if it does not."),
        ),
        _read_condition,
    ),
    "set_state": Control(
        "Sets fields of the state: all of them or none.",
        keys(
            *ABOUT.values(),
            Key(
                "updates",
                Kind("mapping", _updates, _read_updates),
                "Fields and their new values, in order; those above can be read by their bare names.",
                required="updates: {field: value}",
            ),
        ),
        _read_set_state,
    ),
    "foreach": Control(
        "Runs a task for each item of a list.",
        keys(
            *_EVERY_STEP,
            *_MODIFIERS,
            Key("items", _items, "The list, or an expression of one.", required='items: "{{ state.files }}"'),
            Key(
                "task", _task, "The name of one of the tasks.", required="task: the name of one of the tasks"
            ),
            Key("agent", _agent, "The kind of sub-agent that runs it: `@task`, or `@name`."),
            Key(
                "sequential",
                flag("true: one item after the other", null=False),
                "`true`: one after the other.",
            ),
            Key("max_parallel", parallel, "The maximum number of items that run at the same time."),
            Key(
                "output_to",
                _field,
                "The field for the list of results, in the order of the items.",
                required="output_to: a field for the list of results",
            ),
            BUDGET_KEY,
            *AFTER,
        ),
        _read_foreach,
    ),
    "return": Control(
        "Ends the workflow, or the task, with a value.",
        keys(*_EVERY_STEP, Key("value", anything, "The result; templates in it are resolved.")),
        operation(lambda draft, values: Return(draft.expr_at(values.get("value"), "value"))),
        {
            "when": "put the return into the 'then' of a condition",
            "output_to": "its value is the result of the workflow; no step runs after it",
            "error_to": "no step runs after it; move what can fail to a step before it",
            "on_error": "no step runs after it; move what can fail to a step before it",
        },
    ),
    "goto": Control(
        "Continues with another step, up to a number of times.",
        keys(
            *ABOUT.values(),
            Key(
                "target",
                _target,
                "The id of a step of the same list, or of one around it.",
                required="target: the id of a step",
            ),
            Key("max_iterations", _most, "The maximum number of jumps.", required="max_iterations: 3"),
            ON_LIMIT,
        ),
        _read_goto,
    ),
    "wait": wait(*ABOUT.values()),
    "workflow": Control(
        "Calls another workflow.",
        keys(
            *ABOUT.values(),
            Key(
                "workflow",
                called("run-tests"),
                "The name of a workflow of any dialect, or an expression of it.",
                required="workflow: the name of a workflow",
            ),
            Key("inputs", given_inputs, "Its inputs: all that it sees of its caller."),
            BUDGET_KEY,
            *AFTER,
        ),
        operation(call_of),
    ),
}
"""The types of control steps."""


def _begin(reader: StepReader, draft: StepDraft, step: Given, values: Values) -> None:
    at = draft.at
    found = read_id(step.get("id"), at, reader, "step")
    # nothing can refer to this id, so it causes no further problems
    draft.id = found if found is not None else f"#{'.'.join(map(str, at))}"
    for name, read in (("needs_state", _read_needs_state), ("output_to", _read_field)):
        if name not in step and (name == "needs_state" or draft.kind != "return"):
            # a misspelt key is reported elsewhere, and used here
            for other in step:
                if other not in ABOUT and nearest(other, ABOUT) == name and step[other] is not None:
                    values[name] = read(reader, step[other], (*at, other), draft.uses)
                    break
    draft.needs_state = values.get("needs_state")
    draft.output_to, draft.error_to = values.get("output_to", ""), values.get("error_to", "")
    draft.condition, draft.on_failure = values.get("when"), values.get("on_error")
    if not draft.kind and isinstance(step.get("updates"), dict):
        draft.sets = tuple(step["updates"])


def _given(
    reader: StepReader, draft: StepDraft, shape: StepShape, step: Given, places: dict[str, Path]
) -> Given:
    agent = step.get("agent")
    if "agent" not in shape.names or agent is None or is_dynamic(agent, reader.references.language):
        return step
    is_sound = _read_agent(reader, agent, places["agent"], [])
    return step if is_sound else {key: it for key, it in step.items() if key != "agent"}


def _finish(reader: StepReader, draft: StepDraft, values: Values) -> None:
    draft.retry = values.get("retry")
    refuse_exit_codes(draft, reader)


STATEFUL = Dialect(
    name="stateful",
    tasks="tasks",
    about=ABOUT,
    control=CONTROL,
    beside=keys_beside,
    equivalents={
        "agent_shell_command": "shell",
        "conditional": "condition",
        "ExecuteWorkflow": "workflow",
        "if": "condition",
        "parallel_foreach": "foreach",
        "shell_command": "shell",
        "sleep": "wait",
        "state_update": "set_state",
        "user_input": "prompt",
        "user_message": "prompt",
        "Workflow": "workflow",
    },
    reads_equivalents=True,
    step_example="- id: build, and below it type and the keys of that type",
    inner=("then", "else"),
    calls="call",
    begin=_begin,
    given=_given,
    finish=_finish,
    defaults={"Shell": {"timeout": 30}},
)


# ----------------------------------------------------------------------------------------------------
# Creates the nodes of a stateful document, and resolves its gotos.


Reads = Mapping[str, tuple[str, ...] | None]

"""The fields of the state that each step can read, by its id."""

UNREAD = "unread_exit_code"

"""Reported only if there are no errors: it is about what a workflow means, not about whether it can run."""


def lay_out(steps: list[StepDraft], reads: Reads, report: Report) -> tuple[Node, ...]:
    """Creates the nodes of steps with unique ids.

    Reports unknown targets, unreachable steps, and exit codes that nothing reads.
    """
    layout = FlatLayout(steps)
    nodes = tuple(
        layout.node(
            step,
            spot,
            _operation(step, spot, layout, report),
            reads=reads[step.id],
            output_to=step.output_to,
            error_to=step.error_to,
            tolerated=bool(readers := _handled_by(step, layout.drafts)),
            tolerated_by=readers,
        )
        for step, spot in layout
    )
    for before, step in layout.never_reached(nodes):
        report(_never_reached(before, step))
    gates_in_order(nodes, report)
    for step in layout.drafts:
        if _exit_code_is_lost(step, layout.drafts):
            report(_lost_exit_code(step))
    return nodes


def _exit_code_is_lost(step: StepDraft, drafts: list[StepDraft]) -> bool:
    """Whether the agent runs a command, and nothing reads how it ended."""
    do = step.do
    if not isinstance(do, Do) or not do.settings.get(ANY_EXIT) or step.on_failure is not None:
        return False
    if step.process.verify:
        return False  # its checks decide
    whole = ("state", step.output_to)
    return not _read_by(step, drafts) and not any(
        use.reference.path in (whole, whole[:1]) for it in drafts for use in it.uses
    )


def _lost_exit_code(step: StepDraft) -> Problem:
    read = (
        f"read state.{step.output_to}.exit_code"
        if step.output_to
        else "give it an output_to and read exit_code"
    )
    return Problem(
        UNREAD,
        f"nothing reads the exit code of step '{step.id}': the workflow continues if its command fails",
        f"add a line: on_error: fail, or on_error: continue if that is meant; or {read}",
        step.at,
        warning=True,
    )


def _handled_by(step: StepDraft, drafts: list[StepDraft]) -> tuple[str, ...]:
    """The steps that handle the failure of a command of the server by reading its exit code."""
    by_server = isinstance(step.do, Do) and step.do.by == "server"
    return _read_by(step, drafts) if by_server else ()


def _read_by(step: StepDraft, drafts: list[StepDraft]) -> tuple[str, ...]:
    """The steps that read the exit code of a command."""
    if not isinstance(step.do, Do) or not step.do.may_fail or not step.output_to:
        return ()
    asked = {("state", step.output_to, word) for word in ("exit_code", "success")}
    return tuple(it.id for it in drafts if any(use.reference.path[:3] in asked for use in it.uses))


def _never_reached(before: StepDraft, step: StepDraft) -> Problem:
    return Problem(
        "unreachable",
        f"step '{step.id}' is never reached: '{before.id}' always ends the workflow",
        "remove it, or put the return into a condition",
        step.at,
        warning=True,
    )


def _operation(step: StepDraft, spot: Spot, layout: FlatLayout, report: Report) -> Operation:
    if step.kind == "condition":
        otherwise = layout.index[step.otherwise[0].id] if step.otherwise else spot.follows
        return Branch(Expr(step.test or "", (*step.at, "if"), "condition"), otherwise)
    if step.kind == "goto":
        most = step.expr(step.most, "max_iterations")
        return Jump(_target_of(step, spot, layout, report), most, step.on_limit)
    return step.do


def _target_of(step: StepDraft, spot: Spot, layout: FlatLayout, report: Report) -> int:
    """The index of the target of a goto, which is in its list or in a list around it."""
    known = {it.id: layout.index[it.id] for steps in spot.lists for it in steps}
    target, path = step.target, (*step.at, "target")
    if target is None:
        return 0
    if target == step.id:
        message, hint = f"step '{target}' jumps to itself", "name a step before or after it"
        report(Problem("bad_target", message, hint, path))
    elif target in layout.index and target not in known:
        hint = f"a goto reaches the steps of its own list and of those around it: {', '.join(known)}"
        message = f"step '{target}' is in another list, and a goto cannot reach it from here"
        report(Problem("bad_target", message, hint, path))
    elif target not in known:
        hint = did_you_mean(target, known.keys() - {step.id}, what="steps")
        report(Problem("bad_target", f"there is no step '{target}'", hint, path))
    return known.get(target, 0)


PROMPT = "prompt"

"""The step type that asks the user."""


def compile_stateful(
    document: Document, registry: StepRegistry, limits: Limits, *, state_access: str = STATE_ACCESS[0]
) -> tuple[Plan, list[Problem]]:
    """The plan and its problems; it can run only if all of them are warnings.

    `state_access` is the default for documents that do not set it.
    """
    value: dict[str, Value] = document.value
    references = ReferenceReader(LANGUAGES["jinja"])
    reader = StepReader(STATEFUL, document, registry, references, limits)
    problems = reader.problems
    name, header = read_header(reader, WORKFLOW)
    tasks = reader.read_tasks(name, "analyze_file", "it has inputs, initial_state and steps")
    access = reader.values(chosen(WORKFLOW, "state_access"), value, (), [])
    warn = (access.get("state_access") or state_access) == "warn"
    compiler = _Compiler(reader, warn=warn)
    for task, given in tasks.items():
        problems += unknown_keys(given, TASK, ("tasks", task), f"the task '{task}'")
        compiler.read(f"{name}#{task}", given, ("tasks", task))
    compiler.read(name, value, ())
    plans = compiler.plans()
    drafts = {task: compiler.drafts[f"{name}#{task}"] for task in tasks}
    problems += _prompts_of_sub_agents(compiler.drafts[name], drafts)
    problems += _unused_tasks(compiler.drafts[name], drafts)
    problems += map(_with_hint, references.problems)
    whole = plans.pop(name)
    plan = Plan(
        name=name,
        dialect="stateful",
        body=whole.body,
        inputs=whole.inputs,
        initial_state=whole.initial_state,
        secrets=compiler.secrets(name),
        tasks=tuple(plans.values()),
        language="jinja",
        **header,
    )
    for it in (plan, *plan.tasks):
        problems += check_items(it)
    if any(not problem.warning for problem in (*document.problems, *problems)):
        problems = [it for it in problems if it.code != UNREAD]  # errors first
    return plan, problems


class _Compiler:
    """Compiles the workflow and its tasks: each has inputs, initial_state and steps."""

    def __init__(self, reader: StepReader, *, warn: bool) -> None:
        self.document = reader.document
        self.reader = reader
        self.problems = reader.problems
        self.warn = warn
        self.drafts: dict[str, list[StepDraft]] = {}
        self._given: dict[str, tuple[dict[str, Value], Path]] = {}

    def read(self, name: str, given: dict[str, Value], path: Path) -> None:
        drafts = self.reader.read_steps(given, path)
        self._make_unique(drafts)
        self.reader.check_count(every(drafts), path)
        self.drafts[name] = drafts
        self._given[name] = given, path

    def plans(self) -> dict[str, Plan]:
        return {name: self._plan(name, *given) for name, given in self._given.items()}

    def _plan(self, name: str, given: dict[str, Value], path: Path) -> Plan:
        drafts, reader = self.drafts[name], self.reader
        inputs = read_inputs(given.get("inputs"), (*path, "inputs"), reader, required=False)
        state = self._initial_state(given.get("initial_state"), (*path, "initial_state"))
        around = Surroundings(inputs, state, of_items=bool(path), warn=self.warn)
        reads = check_access(drafts, around, self.problems.append)
        nodes = lay_out(drafts, reads, self.problems.append)
        check_order(drafts, nodes, around, self.problems.append)
        return Plan(
            name=name,
            dialect="stateful",
            body=Steps(nodes),
            inputs=inputs,
            initial_state=state,
            description=task_description(reader, given, path),
            file=self.document.source.file,
            secrets=self.secrets(name),
            semantics=SEMANTICS,
            language="jinja",
            result=reader.values(keys(RESULT_KEY), given, path, []).get("result") if path else None,
        )

    def secrets(self, name: str) -> tuple[str, ...]:
        return secrets_in(use for draft in every(self.drafts[name]) for use in draft.uses)

    def _initial_state(self, given: Value, path: Path) -> dict[str, Value]:
        if given is None:
            return {}
        if not isinstance(given, dict):
            self.reader.wrong_type("a mapping of fields", given, "e.g. initial_state: {count: 0}", path)
            return {}
        for use in ReferenceReader(self.reader.references.language).in_value(given, path):
            if use.on_key and len(use.path) == len(path) + 1:
                continue  # not the name of a field, which is reported below
            message = f"{use.reference} is not resolved: the initial state is used as written"
            hint = "set it in a first step of type set_state"
            problem = Problem("literal_default", message, hint, use.path, use.reference.offset, warning=True)
            self.problems.append(problem)
        return {
            name: value
            for name, value in given.items()
            if _is_field(name, (*path, name), self.reader, on_key=True)
        }

    def _make_unique(self, drafts: list[StepDraft]) -> None:
        """Reports duplicate ids and replaces them: an id is the address of a step."""
        first: dict[str, StepDraft] = {}
        for draft in every(drafts):
            before = first.setdefault(draft.id, draft)
            if before is not draft:
                self.problems.append(duplicate_id(draft.id, draft.at, before.at, self.document, "step"))
                draft.id = f"#{'.'.join(map(str, draft.at))}"


def _with_hint(problem: Problem) -> Problem:
    """The problem of an expression, with a hint."""
    hint = "an expression is written {{ state.name }}, a statement {% if inputs.name %} … {% endif %}"
    if problem.code == "private":
        hint = "read inputs, the fields of the state, or values inside them"
    return problem if problem.hint else replace(problem, hint=hint)


def _prompts_of_sub_agents(steps: list[StepDraft], tasks: dict[str, list[StepDraft]]) -> list[Problem]:
    """Reports steps that ask the user in tasks of sub-agents, which cannot do that."""
    delegated: dict[str, StepDraft] = {}
    for step in [*every(steps), *(step for task in tasks.values() for step in every(task))]:
        if step.task and step.for_each is not None and step.for_each.agent:
            delegated.setdefault(step.task, step)
    waiting = list(delegated)
    while waiting:
        task = waiting.pop()
        for step in every(tasks[task]):
            if step.task and step.task not in delegated:
                delegated[step.task] = delegated[task]
                waiting.append(step.task)
    return [
        Problem(
            "prompt_in_task",
            f"step '{step.id}' asks the user, but the task '{task}' runs in sub-agents of"
            f" foreach '{by.id}', and sub-agents cannot ask the user",
            f"ask earlier: put the prompt before step '{by.id}', with an output_to, and use the answer in its"
            " items",
            step.at,
        )
        for task, by in delegated.items()
        for step in every(tasks[task])
        if step.kind == PROMPT
    ]


def _unused_tasks(steps: list[StepDraft], tasks: dict[str, list[StepDraft]]) -> list[Problem]:
    used = {step.task for drafts in (steps, *tasks.values()) for step in every(drafts)}
    return [
        Problem(
            "unused_task",
            f"the task '{task}' is never used",
            f"name it in a step of type foreach: task: {task}, or remove it",
            ("tasks", task),
            on_key=True,
            warning=True,
        )
        for task in tasks
        if task not in used
    ]
