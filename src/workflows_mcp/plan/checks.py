"""Reports unknown references of a plan, each with its path in the document.

A block may read inputs, metadata, and the blocks that are always done before it starts: its direct and
indirect dependencies. Outputs of the workflow may read every block.

Pure: problems have paths in the document, which the dialects convert to places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from workflows_mcp.errors import Problem
from workflows_mcp.plan.calls import (
    circular_calls,
    fixed_name,
    problems_of_call,
    problems_of_items,
    questions_of_sub_agents,
)
from workflows_mcp.plan.graph import topological, unreachable
from workflows_mcp.plan.model import EACH, NO_ITEMS, Bundle, Call, Do, Graph, Node, Path, Plan
from workflows_mcp.plan.references import LANGUAGES, STATE_WORDS, ReferenceReader, Use, Uses
from workflows_mcp.plan.types import Types
from workflows_mcp.values import did_you_mean

ROOTS = ("blocks", "inputs", "metadata", "secrets")

BLOCK_WORDS = ("inputs", "outputs", "metadata", *sorted(STATE_WORDS))

"""The words that can follow `${blocks.id.`; any other word is the name of an output."""

BLOCK_METADATA = frozenset(
    [
        "status",
        "outcome",
        "execution_time_ms",
        "started_at",
        "completed_at",
        "wave",
        "execution_order",
        "attempts",
        "message",
        "by",
        "succeeded",
        "failed",
        "skipped",
    ]
)

REJECTION = ("comment", "by", "gate", "step", "count")

"""What a step that a person has sent back can read of that."""

CALL_FACTS = ("success", "workflow", "execution_time_ms", "total_blocks", "execution_waves")

"""The outputs of a call besides those of the workflow that it calls."""

RUN_METADATA = frozenset(["workflow_name", "start_time", "run_id", "execution_id", "status"])


MOST_PROBLEMS = 100

"""More are not useful, and finding the nearest names for thousands takes long."""


def check_references(
    plan: Plan,
    uses: Uses,
    *,
    plans: Mapping[str, Plan] | None = None,
    opaque: frozenset[str] = frozenset(),
    ordered: bool = True,
) -> list[Problem]:
    """Reports wrong references.

    `plans` are the known workflows by name; `opaque` are the blocks with unknown outputs; `ordered` is false
    if the graph has cycles, and so no order.
    """
    checker = _Checker(plan, plans or {}, opaque)
    problems: list[Problem] = []
    waiting: dict[tuple[int, int], Use] = {}
    for index, (node, in_node) in enumerate(zip(plan.body.nodes, uses.by_node, strict=True)):
        direct = {need.node for need in node.needs}
        if len(problems) > MOST_PROBLEMS:
            return problems
        for use in in_node:
            problem = checker.problem(use, node)
            if problem is not None:
                problems.append(problem)
            elif use.reference.path[0] == "blocks":
                target = checker.index[str(use.reference.path[1])]
                if target not in direct:
                    waiting.setdefault((index, target), use)
    for use in uses.in_outputs:
        problem = checker.problem(use, None)
        if problem is not None:
            problems.append(problem)
    if waiting and ordered:
        problems += _not_dependencies(plan.body.nodes, waiting)
    return problems


def _not_dependencies(nodes: Sequence[Node], waiting: Mapping[tuple[int, int], Use]) -> list[Problem]:
    needs = [[need.node for need in node.needs] for node in nodes]
    in_order = topological([node.order for node in nodes])
    missing = unreachable(needs, in_order, waiting)
    unrelated = set(unreachable(needs, in_order, [(target, reader) for reader, target in missing]))
    problems = []
    for reader, target in missing:
        use = waiting[reader, target]
        here, there = nodes[reader].id, nodes[target].id
        message = f"${{{use.reference}}} cannot be read: block '{here}' does not wait for block '{there}'"
        hint = f"add '{there}' to depends_on of block '{here}'"
        if (target, reader) not in unrelated:
            message = f"${{{use.reference}}} cannot be read: block '{there}' runs after block '{here}'"
            hint = f"remove the reference, or the dependency of '{there}' on '{here}'"
        problems.append(Problem("not_a_dependency", message, hint, use.path, use.reference.offset))
    return problems


class _Checker:
    """Checks whether references exist; checks equal paths only once."""

    def __init__(self, plan: Plan, plans: Mapping[str, Plan], opaque: frozenset[str]) -> None:
        self.plan = plan
        self.plans = plans
        self.opaque = opaque
        self.index = {node.id: position for position, node in enumerate(plan.body.nodes)}
        self.answers: dict[Path, tuple[str, str] | None] = {}

    def problem(self, use: Use, reader: Node | None) -> Problem | None:
        """The problem of a reference in the block `reader`, or in the outputs of the workflow (None)."""
        path = use.reference.path
        answer = None
        if path[0] in ("secrets", "each"):
            answer = _secret(use, reader) if path[0] == "secrets" else _each(use, reader)
            if answer is None:
                return None
        elif reader is not None and path[0] == "blocks":
            if len(path) == 1:
                answer = ("a reference cannot read all blocks at once", "name one: ${blocks.id.outputs.name}")
            elif path[1] == reader.id:
                answer = ("a block cannot read itself", "refer to the sources of its inputs")
        if answer is None:
            try:
                answer = self.answers[path]
            except KeyError:
                answer = self.answers[path] = self._answer(path)
        if answer is None:
            return None
        message, hint = answer
        message = f"${{{use.reference}}}: {message}"
        return Problem("undefined", message, hint, use.path, use.reference.offset, use.on_key)

    def _answer(self, path: Path) -> tuple[str, str] | None:
        """The message and the hint for a wrong `path`; None if it exists."""
        root, *rest = path
        if root == "inputs":
            return self._in_inputs(rest)
        if root == "metadata":
            return _among(rest, RUN_METADATA, "the metadata of a run has no", "fields")
        if root == "blocks":
            return self._in_blocks(self.plan, self.opaque, tuple(rest))
        if root == "rejection" and self.plan.has_push_back:
            return _among(rest, frozenset(REJECTION), "a rejection has no", "fields")
        hint = did_you_mean(str(root), (*ROOTS, "each"), what="a reference starts with one of")
        if root in self.index:
            hint = f"write ${{blocks.{root}.…}}: a reference starts with one of: {', '.join(ROOTS)}"
        elif root in self.plan.inputs:
            hint = f"did you mean ${{inputs.{root}}}?"
        elif root == "item":
            hint = "did you mean ${each.value}?"
        elif not rest:
            hint += f"; if it is not a reference, write \\${{{root}}}"
        return f"there is no '{root}'", hint

    def _in_inputs(self, rest: Sequence[str | int]) -> tuple[str, str] | None:
        if not self.plan.inputs and rest:
            return "the workflow declares no inputs", f"declare it under inputs: {rest[0]}: {{type: string}}"
        return _among(rest, self.plan.inputs, "the workflow has no input", "inputs")

    def _in_blocks(self, plan: Plan, opaque: frozenset[str], rest: Path) -> tuple[str, str] | None:
        """Checks the path after `blocks.`: an id, and a path in that block."""
        while rest:
            node = self._node(plan, rest[0])
            if node is None:
                where = "" if plan is self.plan else f" in workflow '{plan.name}'"
                hint = did_you_mean(str(rest[0]), [node.id for node in plan.body.nodes], what="blocks")
                return f"there is no block '{rest[0]}'{where}", hint
            if node.id in opaque:
                return None
            called = self.plans.get(fixed_name(node.do) or "") if isinstance(node.do, Call) else None
            if node.for_each is not None:
                found = _in_items(node, rest[1:])
                if found is not _AN_ITEM:
                    return found
                rest = (rest[0], *rest[3 if rest[1] == "items" else 2 :])
            if len(rest) < 3 or rest[1] != "blocks" or not isinstance(node.do, Call):
                return _in_block(node, called, rest[1:])
            if called is None:
                return None
            plan, opaque, rest = called, frozenset(), rest[2:]
        return None

    def _node(self, plan: Plan, name: str | int) -> Node | None:
        if plan is not self.plan:
            return next((node for node in plan.body.nodes if node.id == name), None)
        position = self.index.get(name) if isinstance(name, str) else None
        return plan.body.nodes[position] if position is not None else None


def _secret(use: Use, reader: Node | None) -> tuple[str, str] | None:
    """Reports a secret outside of what the server runs, where it would be visible."""
    if len(use.reference.path) != 2 or not str(use.reference.path[1]).isidentifier():
        return "a secret has a name of one word", "e.g. ${secrets.GITHUB_TOKEN}"
    hint = "a secret can be given to inputs of blocks that the server runs, and to workflows that it calls"
    if reader is None:
        return "a secret cannot be an output of the workflow", hint
    part, *further = use.path[len(reader.at) :]
    if part != "inputs":
        return f"a secret cannot be part of '{part}'", hint
    if isinstance(reader.do, Do) and reader.do.by != "server":
        shown_to = "an agent" if reader.do.by == "agent" else "a person"
        return f"a secret cannot be shown to {shown_to}", hint
    if isinstance(reader.do, Call) and further[:1] == ["workflow"]:
        return "a secret cannot be the name of a workflow", hint
    return None


def _each(use: Use, reader: Node | None) -> tuple[str, str] | None:
    if reader is None or reader.for_each is None:
        where = "'each' exists only in a block with for_each"
        return where, "add for_each: ${inputs.items} to the block, or refer to something else"
    if len(use.reference.path) == 1:
        return "'each' itself is not a value", "did you mean ${each.value}? there are: " + ", ".join(EACH)
    if use.path[len(reader.at)] in ("for_each", "max_parallel"):
        return "the list of items cannot read its own items", "refer to inputs or other blocks"
    return _among(use.reference.path[1:], dict.fromkeys(EACH), "an item has no", "fields")


_AN_ITEM = ("", "")

"""The rest of the reference is a path in an item."""


def _in_items(node: Node, rest: Path) -> tuple[str, str] | None:
    """Checks the path `rest` in a block with `for_each`; only the run knows its keys."""
    word = rest[0] if rest else None
    if word is None or word in STATE_WORDS or word in NO_ITEMS:
        return None
    if word == "metadata":
        return _among(rest[1:], BLOCK_METADATA, "the metadata of a block has no", "fields")
    if word == "outputs":
        has_no = f"block '{node.id}' runs once for each item; as a whole it has no output"
        return _among(rest[1:], NO_ITEMS, has_no, "outputs")
    if word == "inputs":
        hint = f"write the key of the item first: ${{blocks.{node.id}.key.inputs.…}}"
        return f"each item of block '{node.id}' has its own inputs", hint
    return None if word == "items" and len(rest) == 1 else _AN_ITEM


def _in_block(node: Node, called: Plan | None, rest: Path) -> tuple[str, str] | None:
    """Checks the path `rest` in the block `node`."""
    word = rest[0] if rest else None
    calls = isinstance(node.do, Call)
    if word is None or word in STATE_WORDS or word == "inputs" or (word == "blocks" and calls):
        return None
    if word == "metadata":
        return _among(rest[1:], BLOCK_METADATA, "the metadata of a block has no", "fields")
    if isinstance(node.do, Do):
        outputs = node.do.defaults
    elif called is not None:
        outputs = called.outputs if isinstance(called.body, Graph) else {"result": None}
    else:
        return None
    facts = CALL_FACTS if calls else ()
    if word == "outputs":
        known = {**dict.fromkeys(facts), **outputs}
        return _among(rest[1:], known, f"block '{node.id}' has no output", "outputs")
    if word in outputs or word in facts:
        return None
    if word == "blocks":
        return f"block '{node.id}' calls no workflow, so there are no blocks in it", "read its outputs"
    return (
        f"block '{node.id}' has no output '{word}'",
        did_you_mean(str(word), [*outputs, *BLOCK_WORDS], what="there is", limit=20),
    )


def _among(
    rest: Sequence[str | int], known: Mapping[str, object] | frozenset[str], has_no: str, what: str
) -> tuple[str, str] | None:
    if not rest or rest[0] in known:
        return None
    hint = did_you_mean(str(rest[0]), known, what=what, limit=20) if known else f"it has no {what} at all"
    return f"{has_no} '{rest[0]}'", hint


# ----------------------------------------------------------------------------------------------------
# Checks plans; reports all problems at once, each with its path in the document. Pure.
#
# `check_plan` checks one plan alone, `check_calls` plans that call each other.


def check_plan(plan: Plan) -> list[Problem]:
    """All problems of the templates, conditions and references of `plan`."""
    reader = ReferenceReader(LANGUAGES[plan.language])
    uses = reader.in_plan(plan)
    return reader.problems + check_references(plan, uses)


def check_calls(bundle: Bundle, known: Iterable[str] = ()) -> dict[str, list[Problem]]:
    """All problems of calls in a bundle, by the name of the calling plan.

    `known` are the names of all existing workflows, to suggest the nearest one for an unknown name.
    """
    names = {*known, *bundle.plans}
    found: dict[str, list[Problem]] = {}
    plans = bundle.every_plan
    for name, plan in plans.items():
        calls = [node for node in plan.body.nodes if isinstance(node.do, Call)]
        if not calls:
            continue
        types = Types(plan, plans.get(name.partition("#")[0]) if plan.shares_state else None)
        problems: list[Problem] = []
        for node in calls:
            problems += problems_of_call(node, plans, names, types)
            problems += problems_of_items(node, plans, types)
        if isinstance(plan.body, Graph):
            uses = ReferenceReader(types.language).in_plan(plan)
            problems += check_references(plan, uses, plans=plans)
        if problems:
            found.setdefault(name.partition("#")[0], []).extend(problems)
    for name, problem in (*questions_of_sub_agents(plans), *circular_calls(bundle)):
        found.setdefault(name, []).append(problem)
    return found
