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

from collections.abc import Callable, Mapping
from dataclasses import replace

from workflows_mcp.dialects.document_keys import (
    read_header,
    text_of,
    unknown_keys,
)
from workflows_mcp.dialects.inputs import read_inputs
from workflows_mcp.dialects.layout import FlatLayout, Spot
from workflows_mcp.dialects.stateful_access import Surroundings, check_access, check_order
from workflows_mcp.dialects.stateful_steps import DIALECT, StepDraft, StepReader
from workflows_mcp.dialects.steps import duplicate_id, every, named_tasks, read_word
from workflows_mcp.dialects.yaml.source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.limits import Limits
from workflows_mcp.plan import (
    LANGUAGES,
    SEMANTICS,
    Branch,
    Do,
    Jump,
    Node,
    Operation,
    Plan,
    ReferenceReader,
    Steps,
    check_items,
    secrets_in,
)
from workflows_mcp.settings import STATE_ACCESS
from workflows_mcp.steps import ANY_EXIT, StepRegistry
from workflows_mcp.values import Value, did_you_mean, kind_and_value

# ----------------------------------------------------------------------------------------------------
# Creates the nodes of a stateful document, and resolves its gotos.


Report = Callable[[Problem], None]

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
    for step in layout.drafts:
        if _exit_code_is_lost(step, layout.drafts):
            report(_lost_exit_code(step))
    return nodes


def _exit_code_is_lost(step: StepDraft, drafts: list[StepDraft]) -> bool:
    """Whether the agent runs a command, and nothing reads how it ended."""
    do = step.do
    if not isinstance(do, Do) or not do.config.get(ANY_EXIT) or step.on_failure is not None:
        return False
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


def _operation(
    step: StepDraft, spot: Spot[StepDraft], layout: FlatLayout[StepDraft], report: Report
) -> Operation:
    if step.kind == "condition":
        otherwise = layout.index[step.otherwise[0].id] if step.otherwise else spot.follows
        return Branch(step.test or "", otherwise)
    if step.kind == "goto":
        return Jump(_target(step, spot, layout, report), step.most, step.on_limit)
    return step.do


def _target(step: StepDraft, spot: Spot[StepDraft], layout: FlatLayout[StepDraft], report: Report) -> int:
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


Path = tuple[str | int, ...]


KEYS = (
    "name",
    "version",
    "description",
    "author",
    "tags",
    "prompt",
    "dialect",
    "elicitation",
    "secrets",
    "inputs",
    "initial_state",
    "state_access",
    "steps",
    "tasks",
)

TASK_KEYS = ("description", "inputs", "initial_state", "steps")

PROMPT = "prompt"

"""The step type that asks the user."""


def compile_stateful(
    document: Document, registry: StepRegistry, limits: Limits, *, state_access: str = STATE_ACCESS[0]
) -> tuple[Plan, list[Problem]]:
    """The plan and its problems; it can run only if all of them are warnings.

    `state_access` is the default for documents that do not set it.
    """
    value: dict[str, Value] = document.value
    problems: list[Problem] = []
    name, header = read_header(document, KEYS, problems)
    tasks = named_tasks(
        value, "tasks", problems, example="analyze_file", has="it has inputs, initial_state and steps"
    )
    references = ReferenceReader(LANGUAGES[DIALECT])
    reader = StepReader(document, registry, references, limits, name, tuple(tasks))
    if value.get("state_access") is not None:
        word = read_word(value["state_access"], STATE_ACCESS, ("state_access",), problems.append)
        state_access = word or state_access
    compiler = _Compiler(document, reader, limits, problems, warn=state_access == "warn")
    for task, given in tasks.items():
        problems += unknown_keys(given, TASK_KEYS, ("tasks", task), f"the task '{task}'")
        compiler.read(f"{name}#{task}", given, ("tasks", task))
    compiler.read(name, value, ())
    plans = compiler.plans()
    drafts = {task: compiler.drafts[f"{name}#{task}"] for task in tasks}
    problems += _prompts_of_sub_agents(compiler.drafts[name], drafts)
    problems += _unused_tasks(compiler.drafts[name], drafts)
    problems += reader.problems
    problems += map(_with_hint, references.problems)
    whole = plans.pop(name)
    plan = Plan(
        name=name,
        dialect=DIALECT,
        body=whole.body,
        inputs=whole.inputs,
        initial_state=whole.initial_state,
        secrets=compiler.secrets(name),
        tasks=tuple(plans.values()),
        **header,
    )
    for it in (plan, *plan.tasks):
        problems += check_items(it)
    if any(not problem.warning for problem in (*document.problems, *problems)):
        problems = [it for it in problems if it.code != UNREAD]  # errors first
    return plan, problems


class _Compiler:
    """Compiles the workflow and its tasks: each has inputs, initial_state and steps."""

    def __init__(
        self, document: Document, reader: StepReader, limits: Limits, problems: list[Problem], *, warn: bool
    ) -> None:
        self.document = document
        self.reader = reader
        self.limits = limits
        self.problems = problems
        self.warn = warn
        self.drafts: dict[str, list[StepDraft]] = {}
        self._given: dict[str, tuple[dict[str, Value], Path]] = {}

    def read(self, name: str, given: dict[str, Value], path: Path) -> None:
        where = (*path, "steps")
        if "steps" in given:
            drafts = self.reader.read_list(given["steps"], where)
        else:
            drafts = []
            hint = "each step is an entry: - id: build, and below it type and the keys of that type"
            self.problems.append(Problem("missing_key", "there are no 'steps'", hint, path, on_key=True))
        self._make_unique(drafts)
        self._count(drafts, where)
        self.drafts[name] = drafts
        self._given[name] = given, path

    def plans(self) -> dict[str, Plan]:
        return {name: self._plan(name, *given) for name, given in self._given.items()}

    def _plan(self, name: str, given: dict[str, Value], path: Path) -> Plan:
        drafts, language = self.drafts[name], self.reader.references.language
        where = (*path, "inputs")
        inputs = read_inputs(
            given.get("inputs"), where, self.document, language, self.problems, required=False
        )
        state = self._initial_state(given.get("initial_state"), (*path, "initial_state"))
        around = Surroundings(inputs, state, of_items=bool(path), warn=self.warn)
        reads = check_access(drafts, around, self.problems.append)
        nodes = lay_out(drafts, reads, self.problems.append)
        check_order(drafts, nodes, around, self.problems.append)
        return Plan(
            name=name,
            dialect=DIALECT,
            body=Steps(nodes),
            inputs=inputs,
            initial_state=state,
            description=text_of(given, "description", path, self.document, self.problems) if path else "",
            file=self.document.source.file,
            secrets=self.secrets(name),
            semantics=SEMANTICS,
        )

    def secrets(self, name: str) -> tuple[str, ...]:
        return secrets_in(use for draft in every(self.drafts[name]) for use in draft.uses)

    def _initial_state(self, given: Value, path: Path) -> dict[str, Value]:
        if given is None:
            return {}
        if not isinstance(given, dict):
            message = f"'initial_state' must be a mapping of fields, not {kind_and_value(given)}"
            self.problems.append(Problem("wrong_type", message, "e.g. initial_state: {count: 0}", path))
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
            if self.reader.field(name, (*path, name), on_key=True)
        }

    def _make_unique(self, drafts: list[StepDraft]) -> None:
        """Reports duplicate ids and replaces them: an id is the address of a step."""
        first: dict[str, StepDraft] = {}
        for draft in every(drafts):
            before = first.setdefault(draft.id, draft)
            if before is not draft:
                self.problems.append(duplicate_id(draft.id, draft.at, before.at, self.document, "step"))
                draft.id = f"#{'.'.join(map(str, draft.at))}"

    def _count(self, drafts: list[StepDraft], path: Path) -> None:
        count, most = sum(1 for _ in every(drafts)), self.limits.steps_per_workflow
        if count > most:
            setting = self.limits.setting("steps_per_workflow")
            message = f"there are {count} steps, at most {most} are allowed"
            hint = f"split it into workflows that call each other, or raise {setting}"
            self.problems.append(Problem("too_large", message, hint, path, on_key=True))


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
