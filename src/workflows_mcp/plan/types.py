"""Infers the types of templates, and reports values that can never be used.

    types = Types(plan)
    types.of("${inputs.n}", node)              # {"integer"}, as the input is declared
    types.of("{{ state.name }}", node)         # {"string"}, if nothing else is ever written there
    types.of("{{ files }}", node)              # {"list", "null"}, as state_schema says
    types.of("v${inputs.n}", node)             # {"string"}

The run checks values of unknown type (None). A value is reported only if all its possible types are wrong.
Pure: problems have paths in the document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workflows_mcp.errors import ExpressionError, Problem
from workflows_mcp.expressions import KIND_NAMES, Kinds
from workflows_mcp.plan.inputs import field_type
from workflows_mcp.plan.model import Do, Each, InputSpec, LanguageName, Node, Path, Plan, SetState
from workflows_mcp.plan.references import LANGUAGES
from workflows_mcp.values import Value

_NUMBERS = frozenset({"number", "integer", "float"})
_IMPOSSIBLE: Mapping[str, frozenset[str]] = {
    "string": frozenset({"list", "object"}),
    "boolean": frozenset({"list", "object", *_NUMBERS}),
    "number": frozenset({"list", "object", "boolean"}),
    "integer": frozenset({"list", "object", "boolean"}),
    "float": frozenset({"list", "object", "boolean"}),
    "list": frozenset({"object", "boolean", *_NUMBERS}),
    "object": frozenset({"list", "boolean", *_NUMBERS}),
}
"""For each wanted type: the types that can never be converted to it. Text can stand for anything."""
_LIST, _OBJECT, _NULL = frozenset({"list"}), frozenset({"object"}), frozenset({"null"})


def never_fits(kinds: Kinds, spec: InputSpec) -> bool:
    """Whether an input accepts no value of these types.

    For null, an optional input uses its default.
    """
    impossible = _IMPOSSIBLE.get(spec.type, frozenset())
    refused = {*impossible, "null"} if spec.required and impossible else impossible
    return bool(kinds) and kinds <= refused


def kinds_of(value: Value) -> Kinds | None:
    """The type of a value without templates."""
    kind = KIND_NAMES.get(type(value))
    return None if kind is None else frozenset({kind})


def named(kinds: Kinds) -> str:
    """The types, for an error."""
    words = sorted((kind for kind in kinds if kind != "null"), key=str)
    return " or ".join("text" if word == "string" else word for word in words) or "null"


def check_items(plan: Plan, owner: Plan | None = None) -> Iterator[Problem]:
    """Reports loops over values that are never a list, or an object where that is accepted.

    `owner` is the plan that declares the state, if it is another one.
    """
    types = Types(plan, owner)
    for node in plan.body.nodes:
        if node.for_each is not None:
            items, wanted, words = node.for_each.items, _LIST | _OBJECT, "a list or an object"
        elif isinstance(node.do, Each):
            items, wanted, words = node.do.items, _LIST, "a list"
        else:
            continue
        text, key = items.source, items.at[-1]
        found = types.of(text, node) if isinstance(text, str) else None
        if not found or found & wanted:
            continue
        exact = types.of(text.strip(), node)
        hint = f"refer to {words}"
        if text != text.strip() and (exact is None or exact & wanted):
            hint = "remove the white space around the reference, which makes it text (|- instead of |)"
        elif "string" in found and (as_list := _as_list(text, plan.language)):
            hint = f"the lines of a text are a list: {key}: {as_list}"
        yield Problem("wrong_type", f"{key} takes {words}, not {named(found)}", hint, items.at)


_AS_LIST: Mapping[LanguageName, tuple[str, str, str]] = {
    "dollar": ("${", "}", "${NAME | lines}; JSON text: | json"),
    "jinja": ("{{", "}}", "{{ NAME | lines }}; JSON text: | parse_json"),
    "javascript": ("{{", "}}", "{{ NAME.split('\\n') }}; JSON text: {{ JSON.parse(NAME) }}"),
}
"""The marks around an expression; and how to write the lines of a text as a list, or to parse JSON text."""


def _as_list(text: str, language: LanguageName) -> str:
    """How to make a list of a text that is exactly one expression; otherwise empty."""
    opening, closing, as_list = _AS_LIST[language]
    inside = text.strip().removeprefix(opening).removesuffix(closing)
    whole = text.strip() == f"{opening}{inside}{closing}" and opening not in inside
    return as_list.replace("NAME", inside.strip()) if whole else ""


class Types:
    """The types of the values that the templates of one plan read."""

    def __init__(self, plan: Plan, owner: Plan | None = None) -> None:
        """`owner` is the plan that declares the state, for a task that shares it."""
        self.plan = plan
        self.owner = owner or plan
        self.language = LANGUAGES[plan.language]
        at = {"dollar": self._in_graph, "jinja": self._in_sequence, "javascript": self._in_reactive}
        self._at = at[plan.language]
        self._written: dict[str, Kinds | None] | None = None

    def of(self, value: Value, node: Node) -> Kinds | None:
        """The possible types of a value of `node`, after its templates are resolved."""
        if not isinstance(value, str) or not self.language.is_dynamic(value):
            return kinds_of(value)
        try:
            expression = self.language.template(value)
        except ExpressionError:
            return None
        return expression.kinds(lambda path: self._at(path, node))

    def _input(self, name: str) -> Kinds | None:
        spec = self.plan.inputs.get(name)
        if spec is None or spec.type == "any":
            return None
        nullable = not spec.required and spec.default is None
        return frozenset({spec.type}) | (_NULL if nullable else frozenset())

    # Blocks

    def _in_graph(self, path: Path, node: Node) -> Kinds | None:
        match path:
            case ("inputs", str() as name):
                return self._input(name)
            case ("blocks", block, "outputs", str() as name) | ("blocks", block, str() as name):
                found = next((it for it in self.plan.body.nodes if it.id == block), None)
                if found is None or found.for_each is not None or not isinstance(found.do, Do):
                    return None
                default = found.do.defaults.get(name)
                return None if default is None else kinds_of(default)
        return None

    # Steps with a state that only steps write

    def _in_sequence(self, path: Path, node: Node) -> Kinds | None:
        match path:
            case ("inputs", str() as name):
                return self._input(name)
            case ("state", str() as name):
                if self._written is None:
                    self._written = self._all_written()
                return self._written.get(name, frozenset())
        return None

    def _all_written(self) -> dict[str, Kinds | None]:
        """The types of all values that are written to each field.

        A field can depend on other fields, so this repeats until no types are added.
        """
        found = {name: kinds_of(it) for name, it in self.plan.initial_state.items()}
        self._written = found
        grows = True
        while grows:
            before = dict(found)
            for node in self.plan.body.nodes:
                for name, kinds in self._writes(node):
                    old = found.get(name, frozenset())
                    found[name] = None if kinds is None or old is None else old | kinds
            grows = found != before
        return found

    def _writes(self, node: Node) -> Iterator[tuple[str, Kinds | None]]:
        if isinstance(node.do, SetState):
            for name, value in node.do.updates.items():
                yield name, self.of(value.source, node)
        if node.error_to:
            yield node.error_to, _OBJECT | _NULL
        if not node.output_to:
            return
        whole = isinstance(node.do, Do) and not node.do.result_output
        yield node.output_to, _LIST if node.for_each is not None else _OBJECT if whole else None

    # Steps with a state that has declared types

    def _in_reactive(self, path: Path, node: Node) -> Kinds | None:
        match path:
            case ("inputs", str() as name):
                return self._input(name)
            case ("config", str() as name):
                value = self.plan.config.get(name)
                return None if value is None else kinds_of(value)
            case ("raw", str() as name):
                return self._raw(name)
            case ("computed", str() as name):
                return self._computed(name)
            case ("this", str() as name):
                return self._field(name)
            case (str() as name,) if "#" not in self.plan.name and not node.loops and name != "error":
                return self._field(name)
        return None

    def _field(self, name: str) -> Kinds | None:
        """The types of a bare name: a computed field, or a field of `raw` that always exists."""
        if name in self.owner.computed:
            return self._computed(name)
        return self._raw(name) if name in self.owner.initial_state.get("raw", {}) else None

    def _computed(self, name: str) -> Kinds | None:
        spec = self.owner.computed.get(name)
        return kinds_of(spec.value) if spec is not None and spec.static else None

    def _raw(self, name: str) -> Kinds | None:
        """The declared type, which all writes must have, and the types of the initial values."""
        declared, given = field_type(self.owner, name), self.owner.inputs.get(name)
        first = self.owner.initial_state.get("raw", {}).get(name)
        found = {declared, given.type if given is not None else declared}
        if "any" in found or self._is_template(first):
            return None
        return frozenset(found).union(kinds_of(first) or (), _NULL)

    def _is_template(self, value: Value) -> bool:
        return isinstance(value, str) and self.language.is_dynamic(value)
