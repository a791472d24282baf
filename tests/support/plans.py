"""Plans made by hand, for tests that are not about YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from workflows_mcp.plan.graph import arrange
from workflows_mcp.plan.model import (
    Bundle,
    Call,
    Do,
    ForEach,
    Graph,
    InputSpec,
    Need,
    Node,
    OnInterrupt,
    Plan,
)
from workflows_mcp.values import Value


def block(
    name: str,
    do: Do | Call | None = None,
    needs: Sequence[str | tuple[str, bool]] = (),
    *,
    condition: str | None = None,
    tolerated: bool = False,
    retry: dict[str, Value] | None = None,
    for_each: ForEach | None = None,
    on_interrupt: OnInterrupt = "repeat",
) -> tuple[Node, list[tuple[str, bool]]]:
    """A block and the names of what it depends on; (name, False) is an optional dependency."""
    wanted = [(need, True) if isinstance(need, str) else need for need in needs]
    operation = do or Do("Echo", {"value": name}, defaults={"value": None})
    node = Node(name, operation, ("blocks", name), condition=condition, tolerated=tolerated)
    node = msgspec.structs.replace(node, retry=retry, for_each=for_each, on_interrupt=on_interrupt)
    return node, wanted


def plan(
    *blocks: tuple[Node, list[tuple[str, bool]]],
    name: str = "test",
    outputs: Mapping[str, Value] | None = None,
    inputs: Mapping[str, InputSpec] | None = None,
) -> Plan:
    index = {node.id: position for position, (node, _) in enumerate(blocks)}
    waves, order = arrange([[index[need] for need, _ in needs] for _, needs in blocks])
    nodes = tuple(
        msgspec.structs.replace(
            node,
            needs=tuple(Need(index[need], required) for need, required in needs),
            wave=waves[position],
            order=order[position],
        )
        for position, (node, needs) in enumerate(blocks)
    )
    return Plan(name, "graph", Graph(nodes), dict(inputs or {}), dict(outputs or {}))


def bundle(main: Plan, *others: Plan) -> Bundle:
    return Bundle(main.name, {it.name: it for it in (main, *others)})
