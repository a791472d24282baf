"""The reactive dialect: compiles a sequence of `steps` and a state with computed fields.

    name: "test:simple"
    default_state: {raw: {counter: 0}}
    state_schema:
      computed:
        doubled: {from: raw.counter, transform: input * 2}
    steps:
      - {type: state_update, path: raw.counter, value: 5}
      - {type: user_message, message: "doubled is {{ doubled }}"}

Each entry of `sub_agent_tasks` is a separate plan, which a parallel_foreach runs for each of its items; it
shares the state of the workflow unless it declares its own. All problems are reported at once. Imported files
are not read here: if the document has imports, an unknown task is called `#task`, and `library.bundles`
replaces that by its full name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import msgspec

from workflows_mcp.dialects.document import INPUT, read_header, read_inputs, task_description, workflow_keys
from workflows_mcp.dialects.keys import (
    Key,
    Kind,
    Path,
    Reader,
    Report,
    Schema,
    chosen,
    flag,
    keys,
    mapping,
    not_null,
    object_schema,
    table_of,
    texts,
    unknown_keys,
)
from workflows_mcp.dialects.layout import FlatLayout, Spot
from workflows_mcp.dialects.process import gates_in_order
from workflows_mcp.dialects.reactive_checks import Body, check_computed, check_reads, fields_of
from workflows_mcp.dialects.reactive_state import DEFAULT_STATE, STATE_SCHEMA, StateReader
from workflows_mcp.dialects.reactive_steps import (
    ERROR_HANDLING,
    REACTIVE,
    TASK_ERROR_HANDLING,
    read_error_handling,
)
from workflows_mcp.dialects.steps import StepDraft, StepReader, every, steps
from workflows_mcp.dialects.yaml.source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.limits import Limits
from workflows_mcp.plan import (
    CONTEXT_FULL,
    LANGUAGES,
    RESUME_PARTS,
    SEMANTICS,
    TYPE_NAMES,
    Branch,
    Each,
    Expr,
    Leave,
    Node,
    Operation,
    Plan,
    ReferenceReader,
    Steps,
    Use,
    While,
    check_items,
    secrets_in,
)
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value, did_you_mean, kind_and_value, nearest

# ----------------------------------------------------------------------------------------------------
# The keys of a workflow and of a task.


def _read_parts(reader: Reader, given: Value, path: Path, uses: list[Use]) -> list[Value]:
    """The parts that the answer to a resume contains, or leaves out.

    `current raw state` is another spelling of `current_raw_state`.
    """
    if not isinstance(given, list):
        reader.wrong_type("a list", given, f"a list of {', '.join(RESUME_PARTS)}", path)
        return []
    found: list[Value] = []
    for index, it in enumerate(given):
        name = "_".join(str(it).replace("_", " ").lower().split())
        if name in RESUME_PARTS:
            found.append(name)
            continue
        hint = did_you_mean(name, RESUME_PARTS, what="there is")
        message = f"{kind_and_value(it)} is not a part of the answer to a resume"
        reader.problem("wrong_value", message, hint, (*path, index))
    return found


def _read_config(reader: Reader, given: Value, path: Path, uses: list[Use]) -> dict[str, Value]:
    found: dict[str, Value] = _names.value(reader, given, path, uses)
    for use in ReferenceReader(reader.references.language).in_value(found, path):
        message = f"{use.reference} is not resolved: the configuration is used as written"
        hint = "put it into default_state: {raw: …}, where expressions are resolved"
        offset = use.reference.offset
        reader.report(Problem("literal_default", message, hint, use.path, offset, warning=True))
    return found


_names = mapping("e.g. config: {max_parallel_agents: 10}", " of names and values")
_config = Kind("mapping", _names.schema, _read_config)
_parts = Kind("list", {"type": "array", "items": {"type": "string"}}, _read_parts)
_flag = flag(null=False)
_steps = not_null(steps("reactive_step"))
ON_RESUME = keys(
    Key("retry_failed_steps", _flag, "`false`: a run that has failed stays failed.", "true"),
    Key("skip_completed_steps", _flag, "`false`: it starts again, with the same inputs.", "true"),
    Key("reset_error_counts", _flag, "`true`: the collected errors are removed.", "false"),
    Key("load_from_checkpoint", _parts, "What the answer to a resume contains.", "all of the state"),
    Key("exclude", _parts, "What it leaves out."),
)
_on_resume = table_of(ON_RESUME, "e.g. on_resume: {retry_failed_steps: true}")
CONTEXT = keys(Key("steps", _steps, "The steps to run.", required="steps: […]"))
_imports = texts("a list of files", 'e.g. imports: ["shared/common-tasks.yaml"]')
_orchestrator = texts(
    "a list of texts", 'e.g. orchestrator_behavior: ["Stop when your context is nearly full"]'
)
_tasks: Schema = {"type": "object", "additionalProperties": {"$ref": "#/$defs/reactive_task"}}
WORKFLOW = workflow_keys(
    "reactive",
    "`default_state`, `state_schema`, `sub_agent_tasks` and some step types imply it",
    Key("imports", _imports, "Files with workflows or tasks that it uses."),
    Key("config", _config, "Values that never change, `{{ config.name }}`, used as written."),
    Key("default_state", Kind("mapping", object_schema(DEFAULT_STATE)), "The initial values of the state."),
    Key("state_schema", Kind("mapping", object_schema(STATE_SCHEMA)), "Types of fields and computed fields."),
    Key("steps", _steps, "The steps, which run one after the other."),
    Key("sub_agent_tasks", Kind("mapping", _tasks), "The tasks that `parallel_foreach` hands out, by name."),
    Key("error_handling", Kind("mapping", object_schema(ERROR_HANDLING)), "What happens after a failure."),
    Key("on_resume", _on_resume, "What a resume does after a failure, and what the answer to it contains."),
    Key(
        CONTEXT_FULL,
        Kind("mapping", object_schema(CONTEXT)),
        "What happens when the agent reports that its context is nearly full.",
    ),
    Key(
        "orchestrator_behavior",
        _orchestrator,
        "Instructions for the agent that runs it, in addition to the standard prompt.",
    ),
)
TASK = keys(
    WORKFLOW["description"],
    Key("inputs", Kind("mapping", {"type": "object"}), "Values with expressions, or declarations of inputs."),
    *chosen(WORKFLOW, "default_state", "state_schema", "steps").values(),
    Key(
        "error_handling",
        Kind("mapping", object_schema(TASK_ERROR_HANDLING)),
        "What happens after a failure of the task.",
    ),
)


# ----------------------------------------------------------------------------------------------------
# Checks the tasks of a reactive document: each is used, and none asks the user.


USER_INPUT = "user_input"

"""The step type that asks the user."""


def check_tasks(
    steps: Iterable[StepDraft], tasks: Mapping[str, list[StepDraft]], *, alone: bool
) -> Iterator[Problem]:
    """Reports unused tasks, and tasks that ask the user.

    `alone`: the document has only tasks, which other files use.
    """
    users: dict[str, StepDraft] = {}
    for step in (*steps, *(step for inside in tasks.values() for step in inside)):
        if step.task:
            users.setdefault(step.task, step)
    for task, inside in tasks.items():
        if task not in users and not alone:
            yield Problem(
                "unused_task",
                f"the task '{task}' is never used",
                f"name it in a step of type parallel_foreach: sub_agent_task: {task}, or remove it",
                ("sub_agent_tasks", task),
                on_key=True,
                warning=True,
            )
        if task in users or alone:
            yield from _questions(task, inside, users.get(task))


def _questions(task: str, steps: Iterable[StepDraft], by: StepDraft | None) -> Iterator[Problem]:
    """Reports steps that ask the user, which a sub-agent cannot do."""
    where = f" of parallel_foreach '{by.id}'" if by is not None else ""
    before = f"step '{by.id}'" if by is not None else "the parallel_foreach"
    for step in steps:
        if step.kind == USER_INPUT:
            yield Problem(
                "prompt_in_task",
                f"step '{step.id}' asks the user, but the task '{task}' runs in sub-agents{where}, and"
                " sub-agents cannot ask the user",
                f"ask earlier: put the user_input before {before}, with a state_update, and read that field"
                " in the task",
                step.at,
            )


# ----------------------------------------------------------------------------------------------------
# Creates the nodes of a reactive document, with unique ids.
#
# A step keeps its id if no other step of the workflow has the same one. Otherwise, and for a step without an
# id, the id contains its position: `detect-then-0-shell_command`, `2-user_message`.


Drafts = list[StepDraft]


def name_steps(steps: Drafts, on_failure: Drafts) -> None:
    """Gives every step a unique id."""
    count = Counter(draft.own_id for draft in every([*steps, *on_failure]) if draft.own_id)
    taken = {name for name, times in count.items() if times == 1}

    def name(drafts: Drafts, around: str) -> None:
        for draft in drafts:
            inside, index = draft.at[-2:]
            if count[draft.own_id] == 1:
                draft.id = draft.own_id
            else:
                prefix = f"{around}-{inside}-" if around else "" if drafts is steps else f"{inside}-"
                draft.id = _unused(f"{prefix}{index}-{draft.own_id or draft.kind or 'step'}", taken)
            name(draft.then, draft.id)
            name(draft.otherwise, draft.id)

    name(steps, "")
    name(on_failure, "")


def _unused(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    taken.add(found)
    return found


def unfolded(steps: Drafts) -> Drafts:
    """Replaces each `sequential` by its steps, which it only groups."""
    found: Drafts = []
    for step in steps:
        step.then, step.otherwise = unfolded(step.then), unfolded(step.otherwise)
        found += step.then if step.kind == "sequential" and step.condition is None else [step]
    return found


def lay_out(steps: Drafts, on_failure: Drafts, report: Report) -> tuple[Node, ...]:
    """Creates the nodes; those of `on_failure` come last.

    Reports steps that leave a loop outside of any loop, and steps that are never reached.
    """
    layout = FlatLayout(steps, on_failure)
    nodes = tuple(
        layout.node(
            step,
            spot,
            _operation(step, spot, layout, report),
            loops=tuple(loop.head for loop in spot.loops),
            changes=step.changes,
            error_changes=step.error_changes,
            fallback=step.fallback,
        )
        for step, spot in layout
    )
    for before, step in layout.never_reached(nodes):
        report(_never_reached(before, step))
    gates_in_order(nodes, report)
    return nodes


def _test(step: StepDraft) -> Expr:
    return Expr(step.test or "false", (*step.at, "condition"), "condition")


def _operation(step: StepDraft, spot: Spot, layout: FlatLayout, report: Report) -> Operation:
    if step.for_each is not None and not step.for_each.wait and spot.loops:
        message = "tasks of one iteration may still be running in the next one"
        hint = "wait for them inside a loop: wait_for_all: true"
        report(Problem("wait_in_loop", message, hint, (*step.at, "wait_for_all")))
    match step.kind:
        case "conditional" | "sequential":
            otherwise = layout.index[step.otherwise[0].id] if step.otherwise else spot.follows
            return Branch(_test(step), otherwise)
        case "while":
            return While(_test(step), spot.follows, step.expr_at(step.most, "max_iterations"), step.on_limit)
        case "foreach":
            return Each(step.expr(step.items, "items"), spot.follows, step.item, step.index)
        case "break" | "continue":
            return _leave(step, spot, report)
    return step.do


def _leave(step: StepDraft, spot: Spot, report: Report) -> Leave:
    if not spot.loops:
        hint = "put it into the body of a while or the steps of a foreach; to end the workflow, use exit"
        message = f"a step of type {step.kind} is outside of any loop"
        report(Problem("bad_target", message, hint, step.at))
        return Leave(spot.follows)
    loop = spot.loops[-1]
    return Leave(loop.behind, loop.head) if step.kind == "break" else Leave(loop.head)


def _never_reached(before: StepDraft, step: StepDraft) -> Problem:
    ends = {
        "break": "leaves the loop",
        "continue": "starts the next iteration",
        "exit": "ends the workflow",
    }
    what = ends.get(before.kind, "does not continue here")
    return Problem(
        "unreachable",
        f"step '{step.id}' is never reached: '{before.id}' always {what}",
        f"remove it, or give '{before.id}' a condition: when: …" if before.kind in ends else "remove it",
        step.at,
        warning=True,
    )


# ----------------------------------------------------------------------------------------------------
# Compiles a document.


def compile_reactive(
    document: Document, registry: StepRegistry, limits: Limits
) -> tuple[Plan, list[Problem]]:
    """The plan and its problems; it can run only if all of them are warnings."""
    value: dict[str, Value] = document.value
    references = ReferenceReader(LANGUAGES["javascript"])
    reader = StepReader(REACTIVE, document, registry, references, limits)
    problems = reader.problems
    name, header = read_header(reader, WORKFLOW)
    own = ("imports", "config", "on_resume", "orchestrator_behavior")
    given = reader.values(chosen(WORKFLOW, *own), value, (), [])
    tasks = reader.read_tasks(name, "process_batch", "it has inputs and steps")
    imports = tuple(dict.fromkeys(_listed(given.get("imports", []))))
    reader.has_imports = bool(imports)
    compiler = _Compiler(reader)
    whole = compiler.read(name, value, (), optional=bool(tasks))
    for task, it in tasks.items():
        path = ("sub_agent_tasks", task)
        problems += unknown_keys(it, TASK, path, f"the task '{task}'")
        compiler.read(f"{name}#{task}", it, path)
    on_context_full = _on_context_full(value.get(CONTEXT_FULL), compiler)
    plans = compiler.plans()
    by_task = {task: compiler.bodies[f"{name}#{task}"].every for task in tasks}
    problems += check_tasks(whole.every, by_task, alone="steps" not in value)
    problems += map(_with_hint, references.problems)
    plan = plans.pop(name)
    config = given.get("config", {})
    plan = msgspec.structs.replace(
        plan,
        **header,
        config=config,
        tasks=tuple(msgspec.structs.replace(task, config=config) for task in plans.values()),
        imports=imports,
        on_resume=given.get("on_resume", {}),
        on_context_full=on_context_full,
        orchestrator=tuple(it.strip() for it in _listed(given.get("orchestrator_behavior", []))),
    )
    for body in (plan, *plan.tasks):
        problems += check_items(body, plan if body.shares_state else None)
    return plan, problems


def _listed(given: Value) -> list[str]:
    return [given] if isinstance(given, str) else given


class _Compiler:
    """Compiles the workflow and its tasks: each has inputs, a state and steps."""

    def __init__(self, reader: StepReader) -> None:
        self.reader = reader
        self.problems = reader.problems
        self.states = StateReader(reader)
        self.bodies: dict[str, Body] = {}

    def read(self, name: str, given: dict[str, Value], path: Path, *, optional: bool = False) -> Body:
        """Reads the workflow or a task; `optional`: it may have no steps."""
        steps = self.reader.read_steps(given, path, optional=optional)
        where = (*path, "error_handling")
        errors = read_error_handling(self.reader, given.get("error_handling"), where, of_task=bool(path))
        body = Body(name, path, given, steps, self.states.read(given, path), errors)
        self._inputs(body)
        name_steps(body.steps, errors.steps)
        body.steps, errors.steps = unfolded(body.steps), unfolded(errors.steps)
        for draft in body.every if errors.continues else ():
            if not draft.sets_on_error:
                draft.on_failure = "continue"
        self.reader.check_count(body.every, path)
        self.bodies[name] = body
        return body

    def _inputs(self, body: Body) -> None:
        """Reads the inputs: declarations, and in a task also values with templates."""
        given, path = body.given.get("inputs"), (*body.path, "inputs")
        declared = given
        if body.path and isinstance(given, dict):
            declared = {name: it for name, it in given.items() if _declares(it)}
            body.values = {name: it for name, it in given.items() if name not in declared}
            body.in_values = self.reader.references.in_value(body.values, path)
        body.inputs = read_inputs(declared, path, self.reader, required=False)

    @property
    def main(self) -> Body:
        return next(iter(self.bodies.values()))

    def plans(self) -> dict[str, Plan]:
        bodies = list(self.bodies.values())
        main, *tasks = bodies
        shared = [main, *(task for task in tasks if task.shares_state)]
        found: dict[str, Plan] = {}
        for body in bodies:
            together = shared if body in shared else [body]
            found[body.name] = self._plan(body, main if body.shares_state else body, together)
        return found

    def _plan(self, body: Body, owner: Body, together: list[Body]) -> Plan:
        """Creates a plan; `owner` declares its state, and `together` are all bodies that write it."""
        report = self.problems.append
        fields = fields_of(together)
        if body is owner:
            check_computed(body, fields, report)
        check_reads(body, owner, fields, report)
        nodes = lay_out(body.steps, body.errors.steps, report)
        first = len(list(every(body.steps)))
        return Plan(
            name=body.name,
            dialect="reactive",
            body=Steps(nodes),
            inputs=body.inputs,
            initial_state={} if body.shares_state else body.declared.initial,
            description=task_description(self.reader, body.given, body.path),
            file=self.reader.document.source.file,
            secrets=secrets_in(use for draft in body.every for use in draft.uses),
            computed=owner.declared.computed,
            raw_types=owner.declared.types["raw"],
            known=tuple(sorted(fields.names)),
            open_inputs=True,
            shares_state=body.shares_state,
            given={key: Expr(it, (*body.path, "inputs", key)) for key, it in body.values.items()},
            on_failure=first if body.errors.steps else -1,
            tries=body.errors.tries,
            errors_to=body.errors.errors_to,
            semantics=SEMANTICS,
            language="javascript",
            reactive=True,
        )


def _declares(given: Value) -> bool:
    """Whether an input of a task is a declaration, not a value."""
    if isinstance(given, dict):
        kind = given.get("type", "any")
        is_kind = isinstance(kind, str) and nearest(kind, TYPE_NAMES) is not None
        return bool(given) and is_kind and given.keys() <= INPUT.keys()
    return given is None or (isinstance(given, str) and given in TYPE_NAMES)


def _on_context_full(given: Value, compiler: _Compiler) -> str:
    """Reads the steps for a full context as a task, and returns its name."""
    if given is None:
        return ""
    path, reader = (CONTEXT_FULL,), compiler.reader
    if not isinstance(given, dict):
        hint = f"write {CONTEXT_FULL}: {{steps: […]}}"
        reader.wrong_type("a mapping with 'steps'", given, hint, path)
        return ""
    reader.problems += unknown_keys(given, CONTEXT, path, f"'{CONTEXT_FULL}'")
    if CONTEXT_FULL in reader.tasks or any(it.id == CONTEXT_FULL for it in compiler.main.every):
        message = f"a step or a task has the id '{CONTEXT_FULL}', which is reserved"
        reader.problem("duplicate_id", message, "give it another name", path, on_key=True)
        return ""
    name = f"{compiler.main.name}#{CONTEXT_FULL}"
    compiler.read(name, {"steps": given.get("steps")} if "steps" in given else {}, path)
    return name


def _with_hint(problem: Problem) -> Problem:
    """The problem of an expression, with a hint."""
    hint = "an expression is JavaScript: {{ files.length > 0 }}"
    if problem.path[-1:] in (("transform",), ("validate",)):
        hint = "a transform is JavaScript: an expression, or statements that end in one or in return"
    return problem if problem.hint else replace(problem, hint=hint)
