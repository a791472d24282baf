"""Describes a workflow before it runs: inputs, steps, questions, conditions, dependencies, duration.

    workflow_info(bundle, registry)                          # {"workflow": "deploy", "steps": […], …}
    explained(bundle, registry, limits, {"env": "prod"})     # {"steps": [{"step_id": "build", …}], …}
    Dependencies(plan).of("valid_files")["direct_deps"]      # ["raw.git_files"]

A value that only a run can know is `unknown: …`, with the reason. Expressions over the inputs are evaluated:
call it outside the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from workflows_mcp.answers.previews import Cut, cut, shortened, within
from workflows_mcp.errors import RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.machine import (
    EvaluationError,
    Names,
    ReactiveState,
    Scope,
    initial_state,
    mentioned,
    program_of,
)
from workflows_mcp.plan import (
    LANGUAGES,
    Branch,
    Bundle,
    Call,
    Do,
    Each,
    Expr,
    Graph,
    Node,
    Operation,
    Plan,
    ReferenceReader,
    UpdateState,
    Wait,
    While,
    fixed_name,
    input_schema,
    kind_of_operation,
)
from workflows_mcp.settings import LEVELS
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value, did_you_mean

# What a workflow is

_INFO_CHARACTERS = 300
_CALL = "ExecuteWorkflow"
_OTHER_NAMES = {
    "reactive": {"condition": "conditional", "call": "include_workflow", "return": "exit"},
}
"""Operations that have another name in a dialect than in the plan."""


def workflow_info(
    bundle: Bundle,
    registry: StepRegistry,
    *,
    source: str = "",
    missing_secrets: Sequence[str] = (),
    forbidden: Sequence[str] = (),
) -> dict[str, Any]:
    """Describe a workflow. `forbidden`: each block that the policy refuses, and why."""
    plan = bundle.plans[bundle.main]
    info: dict[str, Any] = {
        "workflow": plan.name,
        "description": plan.description,
        "dialect": plan.dialect,
        "version": plan.version,
        "tags": list(plan.tags),
        "source": source or plan.file,
        "inputs": input_schema(plan),
        "outputs": {name: _shown(expr.source) for name, expr in plan.outputs.items()},
        "steps": [_info_of(node, plan, registry) for node in plan.body.nodes],
        "asks": _asks(bundle, registry),
        "agent_tools": _agent_tools(bundle),
        "level": _level(bundle, registry),
        "needs": _needs(bundle, registry),
        "secrets": bundle.secrets,
        "missing_secrets": list(missing_secrets),
        "forbidden": list(forbidden),
        "calls": sorted(name for name in bundle.plans if name != bundle.main),
    }
    always = ("workflow", "inputs", "outputs", "steps")
    return {name: value for name, value in info.items() if value or name in always}


def type_name(do: Operation, dialect: str, registry: StepRegistry) -> str:
    """Return the name of an operation in a dialect."""
    step = registry.known(do.step) if isinstance(do, Do) else None
    if step is not None:
        return step.dialect_names.get(dialect, step.name)
    kind = kind_of_operation(do)
    return _OTHER_NAMES.get(dialect, {}).get(kind, kind)


def _info_of(node: Node, plan: Plan, registry: StepRegistry) -> dict[str, Value]:
    graph = plan.body
    step: dict[str, Value] = {"id": node.id}
    if isinstance(graph, Graph):
        step["wave"] = node.wave
    if isinstance(node.do, Call):
        step["calls"] = node.do.name
    else:
        step["type"] = type_name(node.do, plan.dialect, registry)
    if isinstance(node.do, Do):
        step["by"] = node.do.by
    if node.needs:
        step["depends_on"] = [graph.nodes[need.node].id for need in node.needs]
    condition = node.condition
    if (each := node.for_each) is not None:
        step["for_each"] = _shown(each.items.source)
        if each.agent:
            step["agent"] = each.agent
        condition = condition or each.condition
    if condition is not None:
        step["condition"] = _shown(condition.source.strip())
    return step


def _asks(bundle: Bundle, registry: StepRegistry) -> list[Value]:
    """List the questions to agents, and the gates, in the workflow and in the workflows that it calls."""
    asked: list[Value] = []
    for name, plan in _main_first(bundle):
        for node in plan.body.nodes:
            if isinstance(node.do, Do) and node.do.by != "server":
                kind = type_name(node.do, plan.dialect, registry)
                question: dict[str, Value] = {"step": node.id, "type": kind}
                if name != bundle.main:
                    question["workflow"] = name
                question["inputs"] = _shown({name: expr.source for name, expr in node.do.inputs.items()})
                asked.append(question)
    return asked


def _agent_tools(bundle: Bundle) -> list[str]:
    """List the tools of other servers that the agent needs for the workflow."""
    steps = [node.do for plan in bundle.every_plan.values() for node in plan.body.nodes]
    calls = [do for do in steps if isinstance(do, Do) and do.step == "MCPCall" and do.by == "agent"]
    return sorted({str(do.inputs["tool"].source) for do in calls if "tool" in do.inputs} - {""})


def _level(bundle: Bundle, registry: StepRegistry) -> str:
    """Return the highest level of the steps of the workflow and of the workflows that it calls."""
    nodes = [node.do for plan in bundle.every_plan.values() for node in plan.body.nodes]
    names = {_CALL if isinstance(do, Call) else do.step for do in nodes if isinstance(do, Do | Call)}
    levels = {step.level for name in names if (step := registry.known(name)) is not None}
    return max(levels, key=LEVELS.index, default=LEVELS[0])


def _needs(bundle: Bundle, registry: StepRegistry) -> list[str]:
    """List the capabilities that the workflow, and the workflows that it calls, need."""
    needs: set[str] = set()
    for plan in bundle.every_plan.values():
        for node in plan.body.nodes:
            if isinstance(node.do, Do):
                step = registry.known(node.do.step)
                needs |= set(step.capabilities) if step is not None else set()
            elif isinstance(node.do, Call) and fixed_name(node.do) is None:
                needs.add("whatever the workflow needs that is chosen while it runs")
    return sorted(needs)


def _main_first(bundle: Bundle) -> list[tuple[str, Plan]]:
    return sorted(bundle.every_plan.items(), key=lambda item: item[0] != bundle.main)


def _shown(value: Value) -> Value:
    return cut(
        value, (), Cut(_INFO_CHARACTERS), lambda path, offset: "get_workflow_info with definition: true"
    )


# Dependencies between fields

PARTS = ("raw", "state", "computed", "inputs", "config")


class Dependencies:
    """The dependencies between the fields of a reactive state, from its plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        language = LANGUAGES[plan.language]
        self._direct: dict[str, list[str]] = {}
        for name, spec in plan.computed.items():
            paths = [*spec.sources, *(".".join(map(str, path)) for path in mentioned(spec, language))]
            if spec.static:
                paths = []
            self._direct[f"computed.{name}"] = _once(self.spelt(path) for path in paths)

    def spelt(self, path: str) -> str:
        """Return a path with the part of its field: `files` becomes `raw.files` or `computed.files`."""
        head = path.partition(".")[0]
        if head in PARTS:
            return path
        plan = self._plan
        if head in plan.computed:
            return f"computed.{path}"
        for part in ("raw", "state"):
            if head in plan.initial_state.get(part, {}) or (part == "raw" and head in plan.raw_types):
                return f"{part}.{path}"
        if head in plan.inputs:
            return f"inputs.{path}"
        return f"config.{path}" if head in plan.config else f"raw.{path}"

    def of(self, field: str) -> dict[str, Value]:
        """Return the dependencies of a field. Raises RequestError, with the fields, if it is unknown."""
        spelt = self.spelt(field.strip())
        if not self._is_known(spelt):
            known = [*self._plan.computed, *self._plan.known, *self._plan.inputs]
            raise RequestError(
                f"the workflow '{self._plan.name}' has no field '{field}'",
                hint=did_you_mean(field.rpartition(".")[2], known, what="its fields are"),
                code="invalid_path",
            )
        return {
            "direct_deps": self._direct.get(spelt, []),
            "all_deps": self.behind(spelt),
            "dependents": self._dependents(spelt),
        }

    def behind(self, spelt: str) -> list[str]:
        """Return every dependency of a field, the nearest first."""
        found: list[str] = []
        waiting = list(self._direct.get(_field(spelt), []))
        while waiting:
            path = waiting.pop(0)
            if path not in found:
                found.append(path)
                waiting += self._direct.get(_field(path), [])
        return found

    def _dependents(self, spelt: str) -> list[str]:
        """Return every field that may change when this one does."""
        found = [spelt]
        for _ in self._direct:
            more = [
                name
                for name, paths in self._direct.items()
                if name not in found and any(_meet(path, it) for path in paths for it in found)
            ]
            if not more:
                break
            found += more
        return found[1:]

    def _is_known(self, spelt: str) -> bool:
        part, _, rest = spelt.partition(".")
        name, plan = rest.partition(".")[0], self._plan
        if part == "computed":
            return name in plan.computed
        if part == "inputs":
            return name in plan.inputs
        if part == "config":
            return name in plan.config
        declared = {*plan.known, *plan.raw_types, *plan.initial_state.get(part, {})} - set(plan.computed)
        return name in declared or (part == "raw" and name in plan.inputs)


def _field(path: str) -> str:
    """Return the field of a path: `raw.results` for `raw.results.total`."""
    return ".".join(path.split(".")[:2])


def _meet(one: str, other: str) -> bool:
    """Whether one path is the other, or leads through it."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _once(paths: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(paths))


_STEPS = 300

_DEPTH = 5

_CHARACTERS = 200

_QUESTIONS = ("UserInput", "UserPrompt", "Prompt")

_TOOL = "MCPCall"


Inside = tuple[str, Plan, Node]

"""The id of a step with the calls around it, its workflow, and its node."""


def explained(
    bundle: Bundle, registry: StepRegistry, limits: Limits, inputs: dict[str, Value] | None
) -> dict[str, Any]:
    """Explain a workflow. `inputs` are complete, or None if required ones are missing."""
    main = bundle.plans[bundle.main]
    every = list(_every_step(bundle, main, "", ()))
    steps = [_step(bundle, it, registry, limits, inputs) for it in every[:_STEPS]]
    answer: dict[str, Any] = {
        "steps": steps,
        "estimated_duration": _duration([node for _, _, node in every]),
        "required_tools": _tools([node for _, _, node in every]),
    }
    if len(every) > _STEPS:
        answer["more_steps"] = len(every) - _STEPS
    return within(limits, lambda how: _cut(answer, how))


def _cut(answer: dict[str, Any], how: Cut) -> dict[str, Any]:
    return {name: cut(value, (), how, lambda *_: "the definition itself") for name, value in answer.items()}


def _every_step(bundle: Bundle, plan: Plan, prefix: str, around: tuple[str, ...]) -> Iterator[Inside]:
    """Yield the steps of a workflow, each followed by the steps of the workflow that it calls."""
    for node in plan.body.nodes:
        yield prefix + node.id, plan, node
        called = bundle.every_plan.get(fixed_name(node.do) or "")
        if called is not None and called.name not in around and len(around) < _DEPTH:
            yield from _every_step(bundle, called, f"{prefix}{node.id}/", (*around, called.name))


def _step(
    bundle: Bundle, inside: Inside, registry: StepRegistry, limits: Limits, inputs: dict[str, Value] | None
) -> dict[str, Value]:
    step_id, plan, node = inside
    kind = type_name(node.do, plan.dialect, registry)
    if node.for_each is not None and node.for_each.agent:
        kind = "parallel_foreach" if plan.reactive else "foreach"
    step: dict[str, Value] = {"step_id": step_id, "type": kind}
    if isinstance(node.do, Do):
        step["by"] = node.do.by
    if isinstance(node.do, Do) and (command := node.do.inputs.get("command")):
        step["command"] = _short(command.source)
    if conditions := _conditions(plan, node):
        step["conditions"] = conditions
    if node.for_each is not None and node.for_each.agent:
        is_main = plan.name == bundle.main
        step["estimated_sub_agents"] = _sub_agents(plan, node, limits, inputs if is_main else None)
    if dependencies := _dependencies(plan, node):
        step["dependencies"] = dependencies
    return step


def _conditions(plan: Plan, node: Node) -> list[Value]:
    """List the conditions under which a step runs, the outermost first."""
    found: list[Value] = []
    for other in plan.body.nodes:
        length = len(other.at)
        if other is node or node.at[:length] != other.at or len(node.at) <= length:
            continue
        match other.do:
            case Branch(test=test) if node.at[length] in ("else", "otherwise"):
                found.append(f"not ({_short(test.source)})")
            case Branch(test=test):
                found.append(_short(test.source))
            case While(test=test):
                found.append(f"while {_short(test.source)}")
            case Each(items=items):
                found.append(f"for each item of {_short(items.source)}")
            case Call(on_complete=True):
                found.append(f"'{other.id}' has completed")
    if plan.on_failure >= 0 and node in plan.body.nodes[plan.on_failure :]:
        found.append("the workflow has failed")
    own = node.condition or (node.for_each.condition if node.for_each is not None else None)
    if own is not None:
        found.append(_short(own.source))
    match node.do:
        case Branch(test=test) | While(test=test):
            found.append(_short(test.source))
    return found


def _dependencies(plan: Plan, node: Node) -> list[Value]:
    """List the blocks that a block waits for, or the fields that a step of a sequence reads."""
    if isinstance(plan.body, Graph):
        return [
            plan.body.nodes[need.node].id + (" (required: false)" * (not need.required))
            for need in node.needs
        ]
    reader = ReferenceReader(LANGUAGES[plan.language])
    paths = [use.reference.path for use in reader.in_part(node)]
    if not plan.reactive:
        fields = (path for path in paths if path[0] in ("state", "inputs") and len(path) > 1)
        return list(dict.fromkeys(f"{path[0]}.{path[1]}" for path in fields))
    known = {*plan.computed, *plan.known, *plan.inputs, *plan.config}
    dependencies = Dependencies(plan)
    found: list[Value] = []
    for path in paths:
        if path[0] in ("raw", "state", "computed", "inputs", "config") and len(path) > 1:
            found.append(f"{path[0]}.{path[1]}")
        elif path[0] in known:
            found.append(dependencies.spelt(str(path[0])))
    return list(dict.fromkeys(found))


# How many, how long, with what


def _sub_agents(plan: Plan, node: Node, limits: Limits, inputs: dict[str, Value] | None) -> Value:
    assert node.for_each is not None
    items = node.for_each.items.source
    if isinstance(items, list | dict) and not _is_dynamic(plan, items):
        return len(items)
    expression = _short(items)
    if not plan.reactive or inputs is None:
        return f"unknown: as many as {expression} has items when the step is reached"
    written = _written_by_steps(plan, _behind(plan, node))
    if written:
        steps = ", ".join(f"'{it}'" for it in written[:3])
        return f"unknown: {expression} depends on what {steps} will have written by then"
    try:
        found = _evaluated(plan, node.for_each.items, limits, inputs)
    except EvaluationError as error:
        return f"unknown: {expression} cannot be computed from the inputs: {error.fault.message}"
    return len(found) if isinstance(found, list | dict) else f"unknown: {expression} is no list"


def _is_dynamic(plan: Plan, value: Value) -> bool:
    language = LANGUAGES[plan.language]
    if isinstance(value, str):
        return language.is_dynamic(value)
    if isinstance(value, dict | list):
        return any(_is_dynamic(plan, it) for it in (value.values() if isinstance(value, dict) else value))
    return False


def _behind(plan: Plan, node: Node) -> set[str]:
    """Return every field that the items of a step depend on."""
    assert node.for_each is not None
    reader = ReferenceReader(LANGUAGES[plan.language])
    dependencies = Dependencies(plan)
    found: set[str] = set()
    for use in reader.in_expr(node.for_each.items):
        spelt = dependencies.spelt(".".join(map(str, use.reference.path[:2])))
        found |= {spelt, *dependencies.behind(spelt)}
    return {".".join(path.split(".")[:2]) for path in found}


def _written_by_steps(plan: Plan, fields: set[str]) -> list[str]:
    """List the steps that write any of these fields, or whose writes are not known in advance."""
    found: list[str] = []
    for other in (plan, *(task for task in plan.tasks if task.shares_state)):
        for node in other.body.nodes:
            own = node.do.changes if isinstance(node.do, UpdateState) else ()
            for change in (*own, *node.changes, *node.error_changes):
                keys = change.path.source[:2]
                fixed = len(keys) == 2 and not _is_dynamic(plan, keys[1])
                if not fixed or f"{keys[0]}.{keys[1]}" in fields:
                    found.append(node.id)
                    break
    return found


def _evaluated(plan: Plan, expr: Expr, limits: Limits, inputs: dict[str, Value]) -> Value:
    program = program_of(plan)
    scope = Scope(plan.name, inputs, state=initial_state(program, inputs, 0.0, "", limits))
    hidden = {"__now__": 0.0, "__seed__": "", "__limits__": limits}
    names = Names(ReactiveState(scope, program, limits), inputs, {}, hidden, list, plan.known)
    return program.evaluate(expr, names)


def _duration(nodes: list[Node]) -> str:
    asked = [node.do for node in nodes if isinstance(node.do, Do) and node.do.by == "agent"]
    run = [node.do for node in nodes if isinstance(node.do, Do) and node.do.by == "server"]
    waits = [node.do.seconds.source for node in nodes if isinstance(node.do, Wait)]
    questions = sum(do.step in _QUESTIONS for do in asked)
    known = [
        f"{number} {what}"
        for number, what in (
            (questions, "questions to the user"),
            (len(asked) - questions, "steps of the agent"),
            (len(run), "steps of the server"),
            (len(waits), "waits"),
            (sum(node.for_each is not None for node in nodes), "steps for many items"),
        )
        if number
    ]
    if not known:
        return "less than a second: nothing is run and nothing is asked"
    if len(waits) == len(nodes) and all(isinstance(it, int | float) for it in waits):
        return f"{sum(waits):g} s"
    return f"unknown: it depends on {', '.join(known)}, and on how often loops go round"


def _tools(nodes: list[Node]) -> list[str]:
    """List the MCP tools that are called, each once."""
    calls = (node.do for node in nodes if isinstance(node.do, Do) and node.do.step == _TOOL)
    return list(dict.fromkeys(str(do.inputs["tool"].source) for do in calls if "tool" in do.inputs))


def _short(value: Value) -> str:
    return shortened(str(value).strip(), _CHARACTERS)
