"""The graph dialect: `blocks` with dependencies become a plan.

    name: greet
    inputs:
      who: {type: string, default: world}
    blocks:
      - id: hello
        type: Shell
        inputs: {command: 'echo "Hello ${inputs.who}"'}
    outputs:
      said: ${blocks.hello.outputs.stdout}

Everything that is wrong is found in one go; a plan is given only if nothing is.
"""

from __future__ import annotations

from pathlib import PurePath

from workflows_mcp.dialects.document_keys import (
    EXTENSION,
    flag_of,
    secrets_required,
    tags_of,
    text_of,
    unknown_keys,
)
from workflows_mcp.dialects.graph_blocks import BlockReader, Draft
from workflows_mcp.dialects.input_specs import read_inputs
from workflows_mcp.dialects.step_keys import duplicate_id
from workflows_mcp.dialects.yaml_source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.expressions.dollar import Dollar
from workflows_mcp.plan.graph import Arrangement, arrange, cycles, tolerated_by, topological
from workflows_mcp.plan.model import SEMANTICS, Graph, Need, Node, Plan
from workflows_mcp.plan.references import LANGUAGES, ReferenceReader, Use, Uses, secrets_in, watched_blocks
from workflows_mcp.plan.resolution import MOST_PROBLEMS, check_references
from workflows_mcp.plan.types import check_items
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import Value, did_you_mean, kind_and_value, kind_of

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
    """The plan, which is good for running only if there are no problems but warnings."""
    value: dict[str, Value] = document.value
    problems: list[Problem] = []
    keys = {key: item for key, item in value.items() if not key.startswith(EXTENSION)}
    problems += unknown_keys(keys, KEYS, (), "a workflow")
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
        name=text_of(value, "name", (), document, problems) or PurePath(document.source.file).stem,
        dialect="graph",
        body=Graph(nodes),
        inputs=inputs,
        outputs=outputs,
        description=text_of(value, "description", (), document, problems),
        tags=tags_of(value.get("tags"), problems),
        prompt=bool(flag_of(value, "prompt", problems)),
        version=text_of(value, "version", (), document, problems),
        file=document.source.file,
        fail_fast=bool(flag_of(value, "fail_fast", problems)),
        elicitation=flag_of(value, "elicitation", problems),
        secrets_required=secrets_required(value, problems),
        secrets=secrets_in([*uses_of_outputs, *(use for draft in drafts for use in draft.uses)]),
        semantics=SEMANTICS,
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
            "e.g. outputs: {said: '${blocks.hello.outputs.stdout}'}",
            ("outputs",),
        )
    )
    return {}, []


def _resolve_dependencies(
    drafts: list[Draft], document: Document, problems: list[Problem]
) -> list[dict[int, bool]]:
    """For each block the positions of those it depends on, and whether they must succeed."""
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
                            f"'{dependency.block}' stands twice in depends_on of block '{draft.id}'",
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
    """The nodes with their places in the order, and whether there is an order."""
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
    said = any(it.said for it in draft.dependencies if it.block == block)
    return Need(position, required, watched=not said and block in draft.watches)


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
    """For each block the ids of those that handle its failure: `machine.handling` has the rules. Outputs of
    the workflow are not among them: they only report it."""
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
