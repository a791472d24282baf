"""The graph dialect: compiles `blocks` with dependencies to a plan.

    name: greet
    inputs:
      who: {type: string, default: world}
    blocks:
      - id: hello
        type: Shell
        inputs: {command: 'echo "Hello ${inputs.who}"'}
    outputs:
      greeting: ${blocks.hello.outputs.stdout}

All problems are reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from workflows_mcp.dialects.document_keys import (
    flag_of,
    read_header,
    unknown_keys,
)
from workflows_mcp.dialects.inputs import read_inputs
from workflows_mcp.dialects.repetition import FOR_EACH_KEYS, read_for_each, read_retry, refuse_exit_codes
from workflows_mcp.dialects.step_inputs import StepShape, check_step_inputs
from workflows_mcp.dialects.steps import (
    duplicate_id,
    read_id,
    read_on_failure,
    read_on_interrupt,
    read_on_timeout,
    read_timeout,
)
from workflows_mcp.dialects.yaml.source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.expressions import Dollar
from workflows_mcp.plan import (
    LANGUAGES,
    MOST_PROBLEMS,
    Arrangement,
    Call,
    Do,
    ForEach,
    Graph,
    Need,
    Node,
    OnFailure,
    OnInterrupt,
    OnTimeout,
    Plan,
    ReferenceReader,
    Use,
    Uses,
    Wait,
    arrange,
    blocks_asked_about,
    check_items,
    check_references,
    cycles,
    secrets_in,
    tolerated_by,
    topological,
    watched_blocks,
)
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value, did_you_mean, kind_and_value, kind_of, nearest, shown

# ----------------------------------------------------------------------------------------------------
# Reads a block of a graph document into a draft of a node.
#
# A block with problems gets a draft too, so that the rest of the file can be checked.


Path = tuple[str | int, ...]


BLOCK_KEYS = (
    "id",
    "type",
    "name",
    "description",
    "inputs",
    "depends_on",
    "condition",
    "outputs",
    "on_failure",
    "on_interrupt",
    "timeout",
    "on_timeout",
    "retry",
    "for_each",
    "max_parallel",
    "for_each_mode",
)

CALL = "ExecuteWorkflow"

"""The step type that calls another workflow; it is an operation of the plan."""

WAIT = "Wait"

"""The step type that waits; it is an operation of the plan."""

_KNOWN = frozenset(BLOCK_KEYS)

_OTHER_TYPES = {
    **dict.fromkeys(("approval", "approve", "gate", "manual", "input", "ask", "userinput"), "Prompt"),
    **dict.fromkeys(("bash", "sh", "script", "run", "exec", "python", "shellscript"), "Shell"),
    **dict.fromkeys(("subworkflow", "call", "childworkflow", "calldag"), CALL),
    **dict.fromkeys(("template", "jinja", "render"), "RenderTemplate"),
    **dict.fromkeys(("writefile", "write"), "CreateFile"),
    **dict.fromkeys(("cat", "read"), "ReadFile"),
}

"""Names of step types in other systems, and their equivalents here."""

_DEPENDENCY_KEYS = ("block", "required")


@dataclass(slots=True)
class Dependency:
    block: str
    required: bool
    path: Path
    is_explicit: bool = False
    """Whether the file sets `required`."""


@dataclass(slots=True)
class Draft:
    """A block as read from the file; its dependencies are still ids."""

    id: str
    at: Path
    do: Do | Call | Wait
    condition: str | None = None
    on_failure: OnFailure | None = None
    on_interrupt: OnInterrupt = "repeat"
    on_timeout: OnTimeout = "fail"
    timeout_answer: dict[str, Value] | None = None
    retry: dict[str, Value] | None = None
    for_each: ForEach | None = None
    dependencies: list[Dependency] = field(default_factory=list)
    watches: frozenset[str] = frozenset()
    """The blocks whose outcome the condition reads."""
    uses: list[Use] = field(default_factory=list)
    opaque: bool = False
    """Its outputs are unknown, because its type or its inputs are."""


class BlockReader:
    def __init__(self, document: Document, registry: StepRegistry, references: ReferenceReader) -> None:
        self.document = document
        self.registry = registry
        self.references = references
        self.problems: list[Problem] = []
        self.shapes: dict[str, StepShape | None] = {}

    def read(self, block: dict[str, Value], index: int) -> Draft:
        at: Path = ("blocks", index)
        if not block.keys() <= _KNOWN:
            self.problems += unknown_keys(block, BLOCK_KEYS, at, "a block")
        draft = Draft(self._id(block, at), at, Do(""))
        shape = self._shape(block, at)
        inputs = self._inputs(block, at)
        if shape is None or inputs is None:
            draft.opaque = True
            draft.uses += self.references.in_value(inputs, (*at, "inputs"))
        else:
            self._operation(draft, shape, block, inputs)
        if "depends_on" in block:
            draft.dependencies = self._dependencies(block["depends_on"], (*at, "depends_on"))
        if "condition" in block:
            draft.condition = self._condition(block["condition"], (*at, "condition"))
            if draft.condition is not None:
                uses = self.references.in_condition(draft.condition, (*at, "condition"))
                draft.uses += uses
                draft.watches = blocks_asked_about(uses)
        if "on_failure" in block:
            path = (*at, "on_failure")
            draft.on_failure = read_on_failure(block["on_failure"], path, self.problems.append)
        if "on_interrupt" in block:
            path = (*at, "on_interrupt")
            draft.on_interrupt = read_on_interrupt(block["on_interrupt"], path, self.problems.append)
        elif shape is not None:
            draft.on_interrupt = shape.step.on_interrupt
        if "retry" in block:
            path = (*at, "retry")
            draft.retry, uses = read_retry(block["retry"], path, self.references, self.problems.append)
            draft.uses += uses
            refuse_exit_codes(draft.retry, draft.do, path, self.problems.append)
        if "on_timeout" in block:
            read_on_timeout(
                draft,
                block["on_timeout"],
                (*at, "on_timeout"),
                self.references,
                self.problems.append,
                step=shape.step if shape is not None else None,
                inputs=inputs or {},
            )
        if not block.keys().isdisjoint(FOR_EACH_KEYS):
            draft.for_each, uses = read_for_each(
                block, draft.condition, at, self.references, self.problems.append
            )
            draft.uses += uses
            if draft.for_each is not None and draft.for_each.condition is not None:
                draft.condition = None
        return draft

    def _problem(self, code: str, message: str, hint: str, path: Path, *, on_key: bool = False) -> None:
        self.problems.append(Problem(code, message, hint, path, on_key=on_key))

    def _id(self, block: dict[str, Value], at: Path) -> str:
        found = read_id(block.get("id"), at, self.document, "block", self.problems.append)
        # nothing can refer to this id, so it causes no further problems
        return found if found is not None else f"#{at[1]}"

    def _shape(self, block: dict[str, Value], at: Path) -> StepShape | None:
        given = block.get("type")
        if isinstance(given, str):
            if given in self.shapes:
                shape = self.shapes[given]
            else:
                step = self.registry.find(given)
                shape = self.shapes[given] = StepShape(step) if step is not None else None
            if shape is None:
                hint = did_you_mean(given, self.registry.names(), what="types", limit=30)
                equivalent = _OTHER_TYPES.get(given.lower().replace("_", "").replace("-", ""))
                if equivalent is not None:
                    hint = f"write type: {equivalent}"
                self._problem("unknown_type", f"there is no block type '{given}'", hint, (*at, "type"))
            return shape
        types = ", ".join(self.registry.names())
        if given is None:
            self._problem("missing_key", "a block needs a type", f"add a line: type: …, one of: {types}", at)
        else:
            self._problem(
                "unknown_type", f"{shown(given)} is not a block type", f"types: {types}", (*at, "type")
            )
        return None

    def _inputs(self, block: dict[str, Value], at: Path) -> dict[str, Value] | None:
        """The inputs; None if they are unknown because of a mistake."""
        given = block.get("inputs")
        if isinstance(given, dict):
            return given
        if given is None:
            misspelt = any(nearest(key, BLOCK_KEYS) == "inputs" for key in block if key not in _KNOWN)
            return None if misspelt else {}  # one mistake, one problem
        self._problem(
            "wrong_type",
            f"'inputs' must be a mapping of names and values, not {kind_and_value(given)}",
            "write the inputs below it, indented: name: value",
            (*at, "inputs"),
        )
        return None

    def _operation(
        self, draft: Draft, shape: StepShape, block: dict[str, Value], inputs: dict[str, Value]
    ) -> None:
        step, path, references = shape.step, (*draft.at, "inputs"), self.references
        malformed = len(references.problems)
        dynamic: set[str] = set()
        for name, value in inputs.items():
            if isinstance(value, str | dict | list):
                if name in step.code_inputs:
                    refusals = partial(step.refusals, name, inputs=inputs)
                    uses = references.in_code(value, (*path, name), refusals)
                elif name in step.literal_inputs:
                    uses = references.in_literal(value, (*path, name))
                else:
                    uses = references.in_value(value, (*path, name))
                if uses or len(references.problems) > malformed:
                    malformed = len(references.problems)
                    draft.uses += uses
                    dynamic.add(name)
        self.problems += check_step_inputs(shape, inputs, dynamic, path, self.document)
        where = (*draft.at, "timeout")
        timeout, uses = read_timeout(block.get("timeout"), where, references, self.problems.append)
        draft.uses += uses
        if step.name == CALL:
            draft.do = self._call(inputs, timeout, path)
            if "outputs" in block:
                self._no_outputs(step.name, draft.at)
            return
        if step.name == WAIT:
            draft.do = Wait(inputs.get("duration_seconds"), inputs.get("message"))
            if "outputs" in block:
                self._no_outputs(step.name, draft.at)
            return
        if timeout is None and step.timeout_input is not None:
            timeout = inputs.get(step.timeout_input, shape.default_timeout)
        config: dict[str, Value] = {}
        defaults = shape.output_defaults
        if "outputs" in block:
            config, defaults = self._config(shape, block, draft.at)
            draft.uses += self.references.in_config(config, draft.at)
        draft.do = Do(
            step=step.name,
            inputs=inputs,
            by=step.performer,
            code=tuple(name for name in inputs if name in step.code_inputs),
            timeout=timeout,
            config=config,
            defaults=defaults,
            may_fail=step.may_fail,
        )

    def _call(self, inputs: dict[str, Value], timeout: Value, path: Path) -> Call:
        milliseconds = inputs.get("timeout_ms")
        if timeout is None and milliseconds is not None:
            if isinstance(milliseconds, int | float):
                timeout = milliseconds / 1000
            elif isinstance(milliseconds, str) and "${" in milliseconds:
                self._problem(
                    "wrong_type",
                    "'timeout_ms' must be a number, it cannot be a reference",
                    "write the reference as the block's own timeout, in seconds: timeout: ${…}",
                    (*path, "timeout_ms"),
                )
        given = inputs.get("inputs")
        return Call(inputs.get("workflow"), {} if given is None else given, timeout)

    def _no_outputs(self, name: str, at: Path) -> None:
        self._problem(
            "unknown_key",
            f"a block of type {name} cannot declare outputs",
            f"remove it: ${{blocks.id.outputs.…}} has the outputs of {name}",
            (*at, "outputs"),
            on_key=True,
        )

    def _config(
        self, shape: StepShape, block: dict[str, Value], at: Path
    ) -> tuple[dict[str, Value], dict[str, Value]]:
        step, specs = shape.step, block["outputs"]
        if specs is None:
            return {}, shape.output_defaults
        if not step.takes_output_specs:
            self._no_outputs(step.name, at)
            return {}, shape.output_defaults
        if not isinstance(specs, dict):
            self._problem(
                "wrong_type",
                f"'outputs' must be a mapping of names, not {kind_and_value(specs)}",
                "e.g. outputs: {report: {type: json, path: $SCRATCH/report.json}}",
                (*at, "outputs"),
            )
            return {}, shape.output_defaults
        config: dict[str, Value] = {"outputs": specs}
        found = step.check_config(config)
        for path, message, hint in found:
            self._problem("bad_output", message, hint or f"see {step.name}: outputs", (*at, *path))
        if found:
            names = dict.fromkeys(specs)
            return {}, {**shape.output_defaults, **names}
        return config, step.output_defaults(config)

    def _dependencies(self, given: Value, path: Path) -> list[Dependency]:
        if given is None:
            return []
        if isinstance(given, str):
            return [Dependency(given, True, path)]
        if not isinstance(given, list):
            self._bad_dependency(given, path)
            return []
        found = []
        for index, entry in enumerate(given):
            if isinstance(entry, str):
                found.append(Dependency(entry, True, (*path, index)))
            else:
                dependency = self._dependency(entry, (*path, index))
                if dependency is not None:
                    found.append(dependency)
        return found

    def _dependency(self, entry: Value, path: Path) -> Dependency | None:
        if isinstance(entry, int | float):
            return Dependency(self.document.written(path) or str(entry), True, path)
        if not isinstance(entry, dict) or not isinstance(entry.get("block"), str):
            self._bad_dependency(entry, path)
            return None
        self.problems += unknown_keys(entry, _DEPENDENCY_KEYS, path, "a dependency")
        required = entry.get("required", True)
        if not isinstance(required, bool):
            self._problem(
                "wrong_type",
                f"'required' must be true or false, not {kind_and_value(required)}",
                "false: this block also runs when the other failed or was skipped",
                (*path, "required"),
            )
            required = True
        return Dependency(entry["block"], required, (*path, "block"), "required" in entry)

    def _bad_dependency(self, given: Value, path: Path) -> None:
        self._problem(
            "wrong_type",
            f"a dependency is the id of a block, not {kind_and_value(given)}",
            "e.g. depends_on: [build] or depends_on: [{block: build, required: false}]",
            path,
        )

    def _condition(self, given: Value, path: Path) -> str | None:
        if isinstance(given, str):
            return given
        if isinstance(given, bool):
            return "true" if given else "false"
        self._problem(
            "wrong_type",
            f"a condition must be text, not {kind_and_value(given)}",
            "e.g. condition: ${blocks.test.succeeded} and ${inputs.environment} == 'production'",
            path,
        )
        return None


KEYS = (
    "name",
    "description",
    "tags",
    "prompt",
    "version",
    "author",
    "dialect",
    "elicitation",
    "secrets",
    "fail_fast",
    "inputs",
    "blocks",
    "outputs",
)


def compile_graph(document: Document, registry: StepRegistry) -> tuple[Plan, list[Problem]]:
    """The plan and its problems; it can run only if all of them are warnings."""
    value: dict[str, Value] = document.value
    problems: list[Problem] = []
    name, header = read_header(document, KEYS, problems)
    references = ReferenceReader(LANGUAGES["graph"], Dollar.foreign)
    inputs = read_inputs(
        value.get("inputs"), ("inputs",), document, references.language, problems, required=True
    )
    reader = BlockReader(document, registry, references)
    drafts = _read_blocks(reader, value.get("blocks"), problems)
    outputs, uses_of_outputs = _read_outputs(value.get("outputs"), references, problems)
    needs = _resolve_dependencies(drafts, document, problems)
    nodes, ordered = _nodes(drafts, needs, problems)
    plan = Plan(
        name=name,
        dialect="graph",
        body=Graph(nodes),
        inputs=inputs,
        outputs=outputs,
        fail_fast=bool(flag_of(value, "fail_fast", problems)),
        secrets=secrets_in([*uses_of_outputs, *(use for draft in drafts for use in draft.uses)]),
        **header,
    )
    problems += reader.problems
    problems += references.problems
    problems += check_references(
        plan,
        Uses([draft.uses for draft in drafts], uses_of_outputs),
        opaque=frozenset(draft.id for draft in drafts if draft.opaque),
        ordered=ordered,
    )
    problems += check_items(plan)
    return plan, problems


def _read_blocks(reader: BlockReader, blocks: Value, problems: list[Problem]) -> list[Draft]:
    if not isinstance(blocks, list) or not blocks:
        what = "is empty" if blocks is None or blocks == [] else f"must be a list, not {kind_of(blocks)}"
        problems.append(
            Problem(
                "wrong_type",
                f"'blocks' {what}",
                "each block is an entry: - id: build, and below it type and inputs",
                ("blocks",),
                on_key=True,
            )
        )
        return []
    drafts = []
    for index, block in enumerate(blocks):
        if isinstance(block, dict):
            drafts.append(reader.read(block, index))
        else:
            problems.append(
                Problem(
                    "wrong_type",
                    f"a block must be a mapping, not {kind_and_value(block)}",
                    "e.g. - id: build, and below it type and inputs",
                    ("blocks", index),
                )
            )
    return drafts


def _read_outputs(
    outputs: Value, references: ReferenceReader, problems: list[Problem]
) -> tuple[dict[str, Value], list[Use]]:
    if outputs is None:
        return {}, []
    if isinstance(outputs, dict):
        return outputs, references.in_output(outputs, ("outputs",))
    problems.append(
        Problem(
            "wrong_type",
            f"'outputs' must be a mapping of names and values, not {kind_and_value(outputs)}",
            "e.g. outputs: {greeting: '${blocks.hello.outputs.stdout}'}",
            ("outputs",),
        )
    )
    return {}, []


def _resolve_dependencies(
    drafts: list[Draft], document: Document, problems: list[Problem]
) -> list[dict[int, bool]]:
    """For each block, the positions of its dependencies, and whether they must succeed."""
    positions: dict[str, int] = {}
    for index, draft in enumerate(drafts):
        if positions.setdefault(draft.id, index) != index:
            first = drafts[positions[draft.id]].at
            problems.append(duplicate_id(draft.id, draft.at, first, document, "block"))
            draft.id = f"#{draft.at[1]}"
    needs: list[dict[int, bool]] = []
    for index, draft in enumerate(drafts):
        needed: dict[int, bool] = {}
        if len(problems) > MOST_PROBLEMS:
            draft.dependencies = []
        for dependency in draft.dependencies:
            position = positions.get(dependency.block)
            if position is None:
                problems.append(
                    Problem(
                        "unknown_dependency",
                        f"there is no block '{dependency.block}'",
                        did_you_mean(dependency.block, positions.keys() - {draft.id}, what="blocks"),
                        dependency.path,
                    )
                )
            elif position == index:
                problems.append(
                    Problem(
                        "self_dependency",
                        f"block '{draft.id}' depends on itself",
                        "remove it from its own depends_on",
                        dependency.path,
                    )
                )
            else:
                if position in needed:
                    problems.append(
                        Problem(
                            "repeated_dependency",
                            f"'{dependency.block}' appears twice in depends_on of block '{draft.id}'",
                            "keep one of the two",
                            dependency.path,
                            warning=True,
                        )
                    )
                needed[position] = dependency.required or needed.get(position, False)
        needs.append(needed)
    return needs


def _nodes(
    drafts: list[Draft], needs: list[dict[int, bool]], problems: list[Problem]
) -> tuple[tuple[Node, ...], bool]:
    """The nodes with their positions, and whether the graph has an order."""
    arrangement = arrange([list(needed) for needed in needs])
    ordered = arrangement.complete
    if not ordered:
        problems += _cycles(drafts, needs, arrangement)
    watched = _tolerated(drafts, needs, arrangement)
    nodes = tuple(
        Node(
            id=draft.id,
            do=draft.do,
            at=draft.at,
            needs=tuple([_need(draft, drafts[position].id, position, it) for position, it in needed.items()]),
            condition=draft.condition,
            on_failure=draft.on_failure,
            tolerated=bool(watchers),
            tolerated_by=watchers,
            wave=wave,
            order=order,
            retry=draft.retry,
            for_each=draft.for_each,
            on_interrupt=draft.on_interrupt,
            on_timeout=draft.on_timeout,
            timeout_answer=draft.timeout_answer,
        )
        for draft, needed, watchers, wave, order in zip(
            drafts, needs, watched, arrangement.waves, arrangement.order, strict=True
        )
    )
    return nodes, ordered


def _need(draft: Draft, block: str, position: int, required: bool) -> Need:
    explicit = any(it.is_explicit for it in draft.dependencies if it.block == block)
    return Need(position, required, watched=not explicit and block in draft.watches)


def _cycles(drafts: list[Draft], needs: list[dict[int, bool]], arrangement: Arrangement) -> list[Problem]:
    problems = []
    for cycle in cycles([list(needed) for needed in needs], arrangement.waves):
        path = [drafts[index].id for index in cycle]
        first, second = drafts[cycle[0]], drafts[cycle[1]]
        at = next(dependency.path for dependency in first.dependencies if dependency.block == second.id)
        problems.append(
            Problem(
                "cycle",
                f"blocks wait for each other: {' → '.join([*path, path[0]])}",
                "each depends on the next: remove one of these dependencies",
                at,
            )
        )
    return problems


def _tolerated(
    drafts: list[Draft], needs: list[dict[int, bool]], arrangement: Arrangement
) -> list[tuple[str, ...]]:
    """For each block, the ids of the blocks that handle its failure.

    `machine.handling` has the rules. Outputs of the workflow do not count: they only report a failure.
    """
    repeated = {draft.id for draft in drafts if draft.for_each is not None}
    readers: dict[str, list[str]] = {}
    for draft in drafts:
        for block in watched_blocks(draft.uses, repeated):
            readers.setdefault(block, []).append(draft.id)
    required_by: list[list[int]] = [[] for _ in drafts]
    optional_for: list[list[int]] = [[] for _ in drafts]
    for index, needed in enumerate(needs):
        for position, required in needed.items():
            (required_by if required else optional_for)[position].append(index)
    tolerant = tolerated_by(required_by, topological(arrangement.order), optional_for)
    return [
        tuple(dict.fromkeys([*(drafts[other].id for other in others), *readers.get(draft.id, ())]))
        for draft, others in zip(drafts, tolerant, strict=True)
    ]
