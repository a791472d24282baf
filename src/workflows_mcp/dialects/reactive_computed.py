"""Computed fields of a reactive document: does what each comes from exist, and does none come from itself?"""

from __future__ import annotations

from collections.abc import Callable

from workflows_mcp.dialects.reactive_bodies import Body, Fields
from workflows_mcp.errors import Problem
from workflows_mcp.plan.graph import arrange, cycles
from workflows_mcp.plan.references import Use
from workflows_mcp.values import did_you_mean, nearest

Path = tuple[str | int, ...]
Report = Callable[[Problem], None]

WHOLE = ("this", "global")
"""What steps call the state as a whole."""


def check_computed(body: Body, fields: Fields, report: Report) -> None:
    """`fields` are all that the state can have beside the computed ones."""
    for name, spec in body.declared.computed.items():
        place = (*body.declared.places[name], "from")
        for index, source in enumerate(spec.sources):
            problem = _unknown(name, source, (*place, index) if spec.many else place, body, fields)
            if problem is not None:
                report(problem)
        for use in body.declared.uses.get(name, ()):
            if use.reference.path[0] in WHOLE and use.reference.path[0] not in fields.names:
                report(_read_as_a_whole(use, body))
    _check_cycles(body, report)
    _check_collisions(body, fields, report)


def _read_as_a_whole(use: Use, body: Body) -> Problem:
    """A field is computed again when a field that it names has changed, so it names them."""
    root, *rest = map(str, use.reference.path)
    hint = f"write {rest[0]}" if rest else "name each field that it reads, e.g. raw.files"
    if rest and root == "global" and body.is_task:
        hint = f'hand it to the task: inputs: {{{rest[0]}: "{{{{ {rest[0]} }}}}"}}, and write {rest[0]}'
    message = f"{use.reference}: there is no '{root}' in a computed field, which follows from what it names"
    return Problem("undefined", message, hint, use.path, use.reference.offset)


def _unknown(name: str, source: str, path: Path, body: Body, fields: Fields) -> Problem | None:
    part, field = source.split(".")[:2]
    computed = body.declared.computed
    if part == "computed":
        if field in computed:
            return None
        hint = did_you_mean(field, computed, what="computed fields")
        if field in fields.names:
            hint = f"write raw.{field}" if field in fields.raw else f"write state.{field}"
        message = f"'{name}' comes from '{source}', and there is no computed field '{field}'"
        return Problem("undefined", message, hint, path)
    if part not in ("raw", "state") or field in fields.of(part) or not fields.complete:
        return None
    message = f"'{name}' comes from '{source}', which nothing declares or writes"
    hint = f"declare it: state_schema: {{{part}: {{{field}: any}}}}"
    if field in computed:
        hint = f"write computed.{field}"
    elif field in fields.names:
        hint = f"write {'state' if part == 'raw' else 'raw'}.{field}"
    elif close := nearest(field, fields.of(part)):
        hint = f"did you mean '{part}.{close}'?"
    return Problem("undefined", message, hint, path)


def _check_cycles(body: Body, report: Report) -> None:
    names = list(body.declared.computed)
    position = {name: index for index, name in enumerate(names)}
    needs = [sorted({position[it] for it in _needed(name, body) if it in position}) for name in names]
    for cycle in cycles(needs, arrange(needs).waves):
        path = [names[index] for index in cycle]
        message = f"the computed fields come from each other for ever: {' → '.join([*path, path[0]])}"
        if len(path) == 1:
            message = f"the computed field '{path[0]}' comes from itself"
        hint = "let one of them come from raw fields only; in a transform, raw.name is never the computed one"
        report(Problem("cycle", message, hint, body.declared.places[path[0]], on_key=True))


def _needed(name: str, body: Body) -> list[str]:
    """The names of the fields that it comes from: those that it says, and those that its transform reads."""
    spec = body.declared.computed[name]
    needed = [it.split(".")[1] for it in spec.sources if it.startswith("computed.")]
    for use in body.declared.uses.get(name, ()):
        root, *rest = use.reference.path
        if root == "computed":
            needed += [str(it) for it in rest[:1]]
        else:
            needed.append(str(root))
    return needed


def _check_collisions(body: Body, fields: Fields, report: Report) -> None:
    for name, place in body.declared.places.items():
        parts = [part for part in ("raw", "state") if name in fields.of(part)]
        if parts:
            message = (
                f"'{name}' is a computed field, and a field of {parts[0]} too: read by its name, it is the"
            )
            message += " computed one"
            hint = f"give one of the two another name, or read {parts[0]}.{name}"
            report(Problem("name_collision", message, hint, place, on_key=True, warning=True))
    for name in sorted(fields.raw & fields.state - body.declared.computed.keys()):
        message = f"'{name}' is a field of raw, and of state too: read by its name, it is that of raw"
        hint = f"give one of the two another name, or read state.{name}"
        path = body.path or ("steps",)
        for section in ("default_state", "state_schema"):
            given = body.given.get(section)
            if isinstance(given, dict) and isinstance(given.get("state"), dict) and name in given["state"]:
                path = (*body.path, section, "state", name)
        report(Problem("name_collision", message, hint, path, on_key=True, warning=True))
