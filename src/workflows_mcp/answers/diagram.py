"""Draws a workflow or a run as a Mermaid flowchart, which many clients show as a picture.

    flowchart TD
      n0["build · Shell"]:::completed
      n1{"tests pass? · condition"}:::running
      n0 --> n1

Arrows lead from blocks to their dependents, and from steps to the next steps. In a run, each box has the
class of its status, and calls and items are drawn inside their block. A large run is drawn only in part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from workflows_mcp.answers.previews import shortened
from workflows_mcp.answers.run_view import PENDING, RunView
from workflows_mcp.machine import Record, Scope, failed
from workflows_mcp.plan import (
    Branch,
    Call,
    Each,
    Graph,
    Jump,
    Leave,
    Node,
    Plan,
    Return,
    While,
    kind_of_operation,
)

MOST_NODES = 300
MOST_ITEMS = 20
_LABEL_CHARS = 60
_CLASSES = {
    "pending": "fill:#f5f5f5,stroke:#9e9e9e,color:#616161",
    "running": "fill:#e3f2fd,stroke:#1565c0,color:#0d47a1,stroke-width:2px",
    "paused": "fill:#fff8e1,stroke:#f9a825,color:#6d4c00,stroke-width:2px",
    "completed": "fill:#e8f5e9,stroke:#2e7d32,color:#1b5e20",
    "failed": "fill:#ffebee,stroke:#c62828,color:#b71c1c,stroke-width:2px",
    "skipped": "fill:#fafafa,stroke:#bdbdbd,color:#9e9e9e,stroke-dasharray:4 3",
}
Way = tuple[int, str]
"""The index of a next step, and its condition."""


def drawn_plan(plan: Plan) -> str:
    """Draw a workflow."""
    drawing = _Drawing()
    drawing.body(plan, "n", "  ")
    return drawing.text()


def drawn_run(view: RunView) -> str:
    """Draw a run, or a task of it, with the status of each step."""
    drawing, scope, task = _Drawing(view), view.scope, view.task
    if scope is not None:
        drawing.scope(scope, task.node if task is not None else None, "n", "  ")
    elif task is not None:
        drawing.box("n0", task.node, task.record, "  ")
    return drawing.text()


class _Drawing:
    def __init__(self, view: RunView | None = None) -> None:
        self._view = view
        self._lines = ["flowchart TD"]
        self._classes: dict[str, list[str]] = {}
        self._drawn = 0

    def text(self) -> str:
        for name, look in _CLASSES.items():
            if boxes := self._classes.get(name):
                self._lines += [f"  classDef {name} {look}", f"  class {','.join(boxes)} {name}"]
        return "\n".join(self._lines) + "\n"

    def scope(self, scope: Scope, around: Node | None, prefix: str, indent: str) -> None:
        """Draw the inside of a run, a call or a block with items."""
        assert self._view is not None
        if scope.each is None:
            self.body(self._view.machine.plan_named(scope.workflow), prefix, indent, scope)
            return
        items = list(self._view.blocks_in(scope, around))
        for index, (node, record) in enumerate(items[:MOST_ITEMS]):
            self.node(f"{prefix}{index}", node, record, indent, label=f"[{node.id}]")
        if left := Counter(_class_of(record) for _, record in items[MOST_ITEMS:]):
            counts = ", ".join(f"{number} {name}" for name, number in left.items())
            self._lines.append(f'{indent}{prefix}more["… {len(items) - MOST_ITEMS} more: {counts}"]')

    def body(self, plan: Plan, prefix: str, indent: str, scope: Scope | None = None) -> None:
        nodes = plan.body.nodes
        room = max(MOST_NODES - self._drawn, 0)
        shown = range(min(len(nodes), room))
        end = f"{prefix}end"
        records: dict[str, Record] = {}
        if self._view is not None and scope is not None:
            records = {node.id: record for node, record in self._view.blocks_in(scope)}
        for index in shown:
            node = nodes[index]
            record = records.get(node.id, PENDING) if scope is not None else None
            visits = scope.visits.get(node.id, 1) if scope is not None else 1
            self.node(f"{prefix}{index}", node, record, indent, visits=visits)
        if len(nodes) > len(shown):
            self._lines.append(f'{indent}{prefix}more["… {len(nodes) - len(shown)} more"]')
        names = {index: f"{prefix}{index}" for index in shown}
        if isinstance(plan.body, Graph):
            self._needs(nodes, names, indent)
            return
        names[len(nodes)] = end
        self._ways(nodes, names, indent)
        if any(line.endswith(f" {end}") for line in self._lines):
            self._lines.append(f'{indent}{end}(["end"])')
        if plan.on_failure in names:
            self._lines.append(f'{indent}{prefix}fails(["if it fails"]) -.-> {names[plan.on_failure]}')

    def node(
        self,
        name: str,
        node: Node,
        record: Record | None,
        indent: str,
        *,
        label: str = "",
        visits: int = 1,
    ) -> None:
        """Draw a step, with its inside if it has one."""
        if record is None or record.scope is None or self._drawn >= MOST_NODES:
            self.box(name, node, record, indent, label=label, visits=visits)
            return
        self._drawn += 1
        self._lines.append(f'{indent}subgraph {name}["{_label(node, label, visits)}"]')
        self.scope(record.scope, node, f"{name}_", f"{indent}  ")
        self._lines.append(f"{indent}end")
        self._classes.setdefault(_class_of(record), []).append(name)

    def box(
        self,
        name: str,
        node: Node,
        record: Record | None,
        indent: str,
        *,
        label: str = "",
        visits: int = 1,
    ) -> None:
        self._drawn += 1
        left, right = _shape(node)
        self._lines.append(f'{indent}{name}{left}"{_label(node, label, visits)}"{right}')
        if record is not None:
            self._classes.setdefault(_class_of(record), []).append(name)

    def _needs(self, nodes: Sequence[Node], names: dict[int, str], indent: str) -> None:
        for index, name in names.items():
            for need in nodes[index].needs:
                if need.node in names:
                    arrow = "-->" if need.required else "-.->"
                    self._lines.append(f"{indent}{names[need.node]} {arrow} {name}")

    def _ways(self, nodes: Sequence[Node], names: dict[int, str], indent: str) -> None:
        for index in range(len(nodes)):
            for target, when in _ways_on(nodes[index], index, len(nodes)) if index in names else ():
                if target in names:
                    label = f'|"{_escaped(when)}"|' if when else ""
                    self._lines.append(f"{indent}{names[index]} -->{label} {names[target]}")


def _ways_on(node: Node, index: int, end: int) -> Iterator[Way]:
    usual = index + 1 if node.goes_to < 0 else node.goes_to
    skipped = "skipped" if node.condition is not None else ""
    match node.do:
        case Branch(otherwise=otherwise):
            yield index + 1, "yes"
            yield otherwise, "no"
        case While(otherwise=otherwise):
            yield index + 1, "while it holds"
            yield otherwise, "then"
        case Each(otherwise=otherwise):
            yield index + 1, "each item"
            yield otherwise, "then"
        case Jump(target=target, most=most):
            yield target, f"at most {most.source} times"
            yield usual, "then"
            return
        case Leave(target=target):
            yield target, ""
        case Return():
            yield end, ""
        case Call(on_complete=True):
            yield index + 1, "success"
            yield usual, "failed or skipped"
            return
        case _:
            yield usual, ""
            return
    if skipped and not isinstance(node.do, Branch | While | Each):
        yield usual, skipped


def _class_of(record: Record) -> str:
    return "failed" if failed(record) else record.status


def _shape(node: Node) -> tuple[str, str]:
    if node.for_each is not None or isinstance(node.do, Call):
        return "[[", "]]"
    if isinstance(node.do, Branch | While | Each):
        return "{", "}"
    if isinstance(node.do, Return):
        return "([", "])"
    return "[", "]"


def _label(node: Node, label: str, visits: int) -> str:
    kind = kind_of_operation(node.do)
    if isinstance(node.do, Call):
        kind = f"calls {node.do.name}"
    if label:
        return _escaped(label)
    parts = [node.id, kind]
    if node.for_each is not None:
        parts.append("for each")
    if visits > 1:
        parts.append(f"round {visits}")
    return _escaped(" · ".join(parts))


def _escaped(text: str) -> str:
    """Replace characters that have a meaning in a label with their numbers."""
    return "".join(
        f"#{ord(it)};" if it in '"#<>&`\\' or not it.isprintable() else it
        for it in shortened(text, _LABEL_CHARS)
    )
