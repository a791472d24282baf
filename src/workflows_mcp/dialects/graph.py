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

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from workflows_mcp.dialects.document import read_header, read_inputs, switch, workflow_keys
from workflows_mcp.dialects.keys import (
    ON_FAILURE,
    ON_INTERRUPT,
    Key,
    Kind,
    Path,
    Reader,
    Schema,
    chosen,
    condition,
    flag,
    items,
    keys,
    mapping,
    not_null,
    parallel,
    retry,
    seconds,
    unknown_keys,
    word,
)
from workflows_mcp.dialects.process import PROCESS, check_back_to
from workflows_mcp.dialects.step_inputs import StepShape, check_step_inputs
from workflows_mcp.dialects.steps import (
    AFTER_TIMEOUT,
    NAMED,
    Draft,
    duplicate_id,
    read_id,
    read_on_timeout,
    read_process,
    refuse_exit_codes,
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
    Expr,
    ForEach,
    Graph,
    Need,
    Node,
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
    expr_at,
    secrets_in,
    tolerated_by,
    topological,
    watched_blocks,
)
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value, did_you_mean, kind_and_value, kind_of, nearest, shown

# ----------------------------------------------------------------------------------------------------
# The keys of a workflow and of a block.


@dataclass(slots=True)
class Dependency:
    block: str
    required: bool
    path: Path
    is_explicit: bool = False
    """Whether the file sets `required`."""


def _read_dependencies(reader: Reader, given: Value, path: Path, uses: list[Use]) -> list[Dependency]:
    if not isinstance(given, list):
        found = [_read_dependency(reader, given, path, uses) if isinstance(given, str) else None]
        if not isinstance(given, str):
            _bad_dependency(reader, given, path)
    else:
        found = [_read_dependency(reader, it, (*path, index), uses) for index, it in enumerate(given)]
    return [it for it in found if it is not None]


def _read_dependency(reader: Reader, given: Value, path: Path, uses: list[Use]) -> Dependency | None:
    if isinstance(given, int | float):
        given = reader.document.written(path) or str(given)
    if isinstance(given, str):
        return Dependency(given, True, path)
    if not isinstance(given, dict) or not isinstance(given.get("block"), str):
        _bad_dependency(reader, given, path)
        return None
    reader.problems += unknown_keys(given, DEPENDENCY, path, "a dependency")
    is_explicit = "required" in given
    required = not is_explicit or _required.value(reader, given["required"], (*path, "required"), uses)
    return Dependency(given["block"], required, (*path, "block"), is_explicit)


def _bad_dependency(reader: Reader, given: Value, path: Path) -> None:
    message = f"a dependency is the id of a block, not {kind_and_value(given)}"
    hint = "e.g. depends_on: [build] or depends_on: [{block: build, required: false}]"
    reader.problem("wrong_type", message, hint, path)


_required = flag("false: this block also runs when the other failed or was skipped", null=False)
DEPENDENCY = keys(
    Key("block", Kind("id", {"type": "string"}), "The id of the block.", required="block: build"),
    Key("required", _required, "`false`: it also runs if that block failed or was skipped.", "true"),
)
_dependencies: Schema = {"type": ["array", "string"], "items": {"$ref": "#/$defs/dependency"}}
_condition = condition("${blocks.test.succeeded} and ${inputs.environment} == 'production'", "true", "false")
_items = items("e.g. for_each: ${inputs.files} or for_each: [linux, macos]", (list, dict))
BLOCK = keys(
    *NAMED,
    Key("inputs", Kind("mapping", {"type": "object"}), "What a step of its type takes."),
    Key(
        "depends_on",
        Kind("list", _dependencies, _read_dependencies),
        "The blocks that must be done first: ids, or `{block: id, required: false}`.",
    ),
    Key("condition", not_null(_condition), "The block runs only if this is true."),
    Key("outputs", Kind("mapping", {}), "Files that a Shell command writes, by name."),
    Key("on_failure", not_null(word(*ON_FAILURE)), "Whether its failure fails the workflow.", "fail"),
    Key("on_interrupt", not_null(word(*ON_INTERRUPT)), "What happens if a crash interrupts it.", "repeat"),
    Key("timeout", seconds, "Seconds after which the block is stopped and fails; for each attempt and item."),
    AFTER_TIMEOUT,
    Key("retry", retry, "When a failure is retried, and how often."),
    Key("for_each", not_null(_items), "A list or an object: the block runs once for each item."),
    Key("max_parallel", parallel, "The maximum number of items that run at the same time."),
    Key(
        "for_each_mode",
        not_null(word("parallel", "sequential", what="modes")),
        "`sequential`: one item after the other.",
        "parallel",
    ),
    *PROCESS.values(),
)
_blocks: Schema = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/block"}}
_outputs = mapping("e.g. outputs: {greeting: '${blocks.hello.outputs.stdout}'}", " of names and values")
WORKFLOW = workflow_keys(
    "graph",
    "`blocks` implies it",
    Key("fail_fast", switch, "`true`: the first failure that nothing handles ends the workflow.", "false"),
    Key(
        "blocks",
        Kind("list of blocks", _blocks, null=False),
        "The blocks. Those that do not depend on each other run at the same time.",
    ),
    Key("outputs", _outputs, "The outputs, by name: values with references."),
)


# ----------------------------------------------------------------------------------------------------
# Reads a block of a graph document into a draft of a node.
#
# A block with problems gets a draft too, so that the rest of the file can be checked.


CALL = "ExecuteWorkflow"

"""The step type that calls another workflow; it is an operation of the plan."""

WAIT = "Wait"

"""The step type that waits; it is an operation of the plan."""

_OTHER_TYPES = {
    **dict.fromkeys(("input", "ask", "userinput"), "Prompt"),
    **dict.fromkeys(("approval", "approve", "manual"), "Gate"),
    **dict.fromkeys(("bash", "sh", "script", "run", "exec", "python", "shellscript"), "Shell"),
    **dict.fromkeys(("subworkflow", "call", "childworkflow", "calldag"), CALL),
    **dict.fromkeys(("template", "jinja", "render"), "RenderTemplate"),
    **dict.fromkeys(("writefile", "write"), "CreateFile"),
    **dict.fromkeys(("cat", "read"), "ReadFile"),
}

"""Names of step types in other systems, and their equivalents here."""


@dataclass(slots=True)
class BlockDraft(Draft):
    """A block as read from the file; its dependencies are still ids."""

    dependencies: list[Dependency] = field(default_factory=list)
    watches: frozenset[str] = frozenset()
    """The blocks whose outcome the condition reads."""
    opaque: bool = False
    """Its outputs are unknown, because its type or its inputs are."""


class BlockReader(Reader):
    def __init__(self, document: Document, registry: StepRegistry, references: ReferenceReader) -> None:
        super().__init__(document, references)
        self.registry = registry
        self.shapes: dict[str, StepShape | None] = {}

    def read(self, block: dict[str, Value], index: int) -> BlockDraft:
        at: Path = ("blocks", index)
        if not block.keys() <= BLOCK.keys():
            self.problems += unknown_keys(block, BLOCK, at, "a block")
        found = read_id(block.get("id"), at, self, "block")
        # nothing can refer to this id, so it causes no further problems
        draft = BlockDraft(found if found is not None else f"#{index}", at, Do(""))
        shape = self._shape(block, at)
        inputs = self._inputs(block, at)
        draft.opaque = shape is None or inputs is None
        uses: list[Use] = []
        values = self.values(BLOCK, self._applicable(block, draft), at, uses)
        if shape is None or inputs is None:
            draft.uses += self.references.in_value(inputs, (*at, "inputs"))
        else:
            self._operation(draft, shape, block, inputs, values.get("timeout"))
        draft.uses += uses
        draft.dependencies = values.get("depends_on", [])
        draft.condition = values.get("condition")
        if draft.condition is not None:
            draft.watches = blocks_asked_about(use for use in uses if use.path == (*at, "condition"))
        draft.on_failure = values.get("on_failure")
        draft.on_interrupt = values.get("on_interrupt") or (shape.step.on_interrupt if shape else "repeat")
        draft.retry = values.get("retry")
        read_process(draft, values, block, self, "block")
        refuse_exit_codes(draft, self)
        read_on_timeout(draft, values.get("on_timeout"), self, shape.step if shape else None, inputs or {})
        if "for_each" in values:
            limit = 1 if values.get("for_each_mode") == "sequential" else values.get("max_parallel")
            by_item = self._reads_item(draft)
            of_item = expr_at(draft.condition if by_item else None, (*at, "condition"), "condition")
            items, at_once = draft.expr(values["for_each"], "for_each"), draft.expr_at(limit, "max_parallel")
            draft.for_each = ForEach(items, at_once, of_item)
            draft.condition = None if by_item else draft.condition
        return draft

    def _applicable(self, block: dict[str, Value], draft: BlockDraft) -> dict[str, Value]:
        """The keys that have a meaning in this block; reports the others."""
        without = {"timeout"} if draft.opaque else set()
        if "for_each" not in block:
            for key in ("max_parallel", "for_each_mode"):
                if key in block:
                    without.add(key)
                    hint = "add for_each: ${inputs.items}, or remove it"
                    message = f"'{key}' is for a block with for_each"
                    self.problem("unknown_key", message, hint, (*draft.at, key), on_key=True)
        return {key: it for key, it in block.items() if key not in without} if without else block

    def _reads_item(self, draft: BlockDraft) -> bool:
        """Whether the condition reads the item, so that it decides for each item."""
        path = (*draft.at, "condition")
        return any(use.path == path and use.reference.path[0] == "each" for use in draft.uses)

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
                self.problem("unknown_type", f"there is no block type '{given}'", hint, (*at, "type"))
            return shape
        types = ", ".join(self.registry.names())
        if given is None:
            self.problem("missing_key", "a block needs a type", f"add a line: type: …, one of: {types}", at)
        else:
            self.problem(
                "unknown_type", f"{shown(given)} is not a block type", f"types: {types}", (*at, "type")
            )
        return None

    def _inputs(self, block: dict[str, Value], at: Path) -> dict[str, Value] | None:
        """The inputs; None if they are unknown because of a mistake."""
        given = block.get("inputs")
        if isinstance(given, dict):
            return given
        if given is None:
            misspelt = any(nearest(key, BLOCK) == "inputs" for key in block if key not in BLOCK)
            return None if misspelt else {}  # one mistake, one problem
        hint = "write the inputs below it, indented: name: value"
        self.wrong_type("a mapping of names and values", given, hint, (*at, "inputs"))
        return None

    def _operation(
        self,
        draft: BlockDraft,
        shape: StepShape,
        block: dict[str, Value],
        inputs: dict[str, Value],
        timeout: Value,
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
        if step.name in (CALL, WAIT):
            seconds = Expr(inputs.get("duration_seconds"), (*path, "duration_seconds"))
            wait = Wait(seconds, expr_at(inputs.get("message"), (*path, "message")))
            draft.do = wait if step.name == WAIT else self._call(draft, inputs, timeout)
            if "outputs" in block:
                self._no_outputs(step.name, draft.at)
            return
        if timeout is None and step.timeout_input is not None:
            default = shape.default_timeout if step.performer == "server" else None
            timeout = inputs.get(step.timeout_input, default)
        config: dict[str, Value] = {}
        defaults = shape.output_defaults
        if "outputs" in block:
            config, defaults = self._config(shape, block, draft.at)
            draft.uses += self.references.in_config(config, draft.at)
        draft.do = Do(
            step=step.name,
            inputs={
                name: Expr(value, (*path, name), "code" if name in step.code_inputs else "template")
                for name, value in inputs.items()
            },
            by=step.performer,
            timeout=draft.expr_at(timeout, "timeout"),
            config=Expr(config, draft.at, "settings") if config else None,
            defaults=defaults,
            may_fail=step.may_fail,
        )

    def _call(self, draft: BlockDraft, inputs: dict[str, Value], timeout: Value) -> Call:
        milliseconds = inputs.get("timeout_ms")
        if timeout is None and milliseconds is not None:
            if isinstance(milliseconds, int | float):
                timeout = milliseconds / 1000
            elif isinstance(milliseconds, str) and "${" in milliseconds:
                self.problem(
                    "wrong_type",
                    "'timeout_ms' must be a number, it cannot be a reference",
                    "write the reference as the block's own timeout, in seconds: timeout: ${…}",
                    (*draft.at, "inputs", "timeout_ms"),
                )
        given = inputs.get("inputs")
        return Call(
            draft.expr_at(inputs.get("workflow"), "inputs", "workflow"),
            draft.expr({} if given is None else given, "inputs", "inputs"),
            draft.expr_at(timeout, "timeout"),
        )

    def _no_outputs(self, name: str, at: Path) -> None:
        self.problem(
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
            hint = "e.g. outputs: {report: {type: json, path: $SCRATCH/report.json}}"
            self.wrong_type("a mapping of names", specs, hint, (*at, "outputs"))
            return {}, shape.output_defaults
        config: dict[str, Value] = {"outputs": specs}
        found = step.check_config(config)
        for path, message, hint in found:
            self.problem("bad_output", message, hint or f"see {step.name}: outputs", (*at, *path))
        if found:
            names = dict.fromkeys(specs)
            return {}, {**shape.output_defaults, **names}
        return config, step.output_defaults(config)


# ----------------------------------------------------------------------------------------------------
# Compiles a document.


def compile_graph(document: Document, registry: StepRegistry) -> tuple[Plan, list[Problem]]:
    """The plan and its problems; it can run only if all of them are warnings."""
    value: dict[str, Value] = document.value
    problems: list[Problem] = []
    references = ReferenceReader(LANGUAGES["dollar"], Dollar.foreign)
    reader = BlockReader(document, registry, references)
    name, header = read_header(reader, WORKFLOW)
    inputs = read_inputs(value.get("inputs"), ("inputs",), reader, required=True)
    drafts = _read_blocks(reader, value.get("blocks"))
    given = reader.values(chosen(WORKFLOW, "fail_fast", "outputs"), value, (), [])
    outputs: dict[str, Value] = given.get("outputs", {})
    uses_of_outputs = references.in_output(outputs, ("outputs",))
    needs = _resolve_dependencies(drafts, document, problems)
    nodes, ordered = _nodes(drafts, needs, problems)
    problems += _gates(nodes, ordered)
    plan = Plan(
        name=name,
        dialect="graph",
        body=Graph(nodes),
        inputs=inputs,
        outputs={key: Expr(value, ("outputs", key), "output") for key, value in outputs.items()},
        fail_fast=given.get("fail_fast", False),
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


def _read_blocks(reader: BlockReader, blocks: Value) -> list[BlockDraft]:
    if not isinstance(blocks, list) or not blocks:
        what = "is empty" if blocks is None or blocks == [] else f"must be a list, not {kind_of(blocks)}"
        hint = "each block is an entry: - id: build, and below it type and inputs"
        reader.problem("wrong_type", f"'blocks' {what}", hint, ("blocks",), on_key=True)
        return []
    drafts = []
    for index, block in enumerate(blocks):
        if isinstance(block, dict):
            drafts.append(reader.read(block, index))
        else:
            message = f"a block must be a mapping, not {kind_and_value(block)}"
            hint = "e.g. - id: build, and below it type and inputs"
            reader.problem("wrong_type", message, hint, ("blocks", index))
    return drafts


def _resolve_dependencies(
    drafts: list[BlockDraft], document: Document, problems: list[Problem]
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
            block, path = dependency.block, dependency.path
            position = positions.get(block)
            if position is None:
                hint = did_you_mean(block, positions.keys() - {draft.id}, what="blocks")
                problems.append(Problem("unknown_dependency", f"there is no block '{block}'", hint, path))
                continue
            if position == index:
                message, hint = f"block '{draft.id}' depends on itself", "remove it from its own depends_on"
                problems.append(Problem("self_dependency", message, hint, path))
                continue
            if position in needed:
                message = f"'{block}' appears twice in depends_on of block '{draft.id}'"
                hint = "keep one of the two"
                problems.append(Problem("repeated_dependency", message, hint, path, warning=True))
            needed[position] = dependency.required or needed.get(position, False)
        needs.append(needed)
    return needs


def _nodes(
    drafts: list[BlockDraft], needs: list[dict[int, bool]], problems: list[Problem]
) -> tuple[tuple[Node, ...], bool]:
    """The nodes with their positions, and whether the graph has an order."""
    arrangement = arrange([list(needed) for needed in needs])
    ordered = arrangement.complete
    if not ordered:
        problems += _cycles(drafts, needs, arrangement)
    watched = _tolerated(drafts, needs, arrangement)
    nodes = tuple(
        draft.node(
            draft.do,
            needs=tuple([_need(draft, drafts[position].id, position, it) for position, it in needed.items()]),
            tolerated=bool(watchers),
            tolerated_by=watchers,
            wave=wave,
            order=order,
        )
        for draft, needed, watchers, wave, order in zip(
            drafts, needs, watched, arrangement.waves, arrangement.order, strict=True
        )
    )
    return nodes, ordered


def _gates(nodes: tuple[Node, ...], ordered: bool) -> Iterator[Problem]:
    """Reports gates that send back what does not come before them."""
    for node in nodes if ordered else ():
        if not node.back_to:
            continue
        before: set[int] = set()
        waiting = [need.node for need in node.needs]
        while waiting:
            position = waiting.pop()
            if position not in before:
                before.add(position)
                waiting += [need.node for need in nodes[position].needs]
        known = {other.id: position in before for position, other in enumerate(nodes)}
        problem = check_back_to(node, known, "block")
        if problem is not None:
            yield problem


def _need(draft: BlockDraft, block: str, position: int, required: bool) -> Need:
    explicit = any(it.is_explicit for it in draft.dependencies if it.block == block)
    return Need(position, required, watched=not explicit and block in draft.watches)


def _cycles(
    drafts: list[BlockDraft], needs: list[dict[int, bool]], arrangement: Arrangement
) -> list[Problem]:
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
    drafts: list[BlockDraft], needs: list[dict[int, bool]], arrangement: Arrangement
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
