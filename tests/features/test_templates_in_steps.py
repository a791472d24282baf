"""RenderTemplate where the dialect's own expressions are written like the template: it is rendered once, as it is
written, and sees its variables only."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.rendered import Service
from workflows_mcp.dialects import load
from workflows_mcp.errors import DefinitionError
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.registry import default_registry

REACTIVE = """
name: letter
inputs: {who: {type: string, default: "{{ 7*7 }}"}}
default_state: {raw: {got: null}}
steps:
  - id: write
    type: RenderTemplate
    template: %s
    variables: {name: "{{ who }}", names: [Ann, Bob]}
    state_update: {path: raw.got, value: "{{ rendered }}"}
"""
STATEFUL = """
name: letter
inputs: {who: {type: string, default: "{{ 7*7 }}"}}
initial_state: {got: null}
steps:
  - id: write
    type: RenderTemplate
    template: %s
    variables: {name: "{{ inputs.who }}", names: [Ann, Bob]}
    needs_state: []
    output_to: got
"""
MESSAGE = '"Dear {{ name }}{% for it in names %}, {{ it | upper }}{% endfor %}"'


def answered(settings: Settings, text: str, **inputs: Any) -> dict[str, Any]:
    async def go() -> dict[str, Any]:
        async with Service.open(settings) as service:
            return await service.start(text=text, inputs=inputs)

    return asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("G12")
@pytest.mark.parametrize("who", ["Ann", "{{ 7*7 }}", "{% raw %}", "{{ secrets.TOKEN }}"])
@pytest.mark.parametrize("dialect", [REACTIVE, STATEFUL])
def test_a_template_is_rendered_once_and_a_value_in_it_is_text(
    dialect: str, who: str, settings: Settings
) -> None:
    answer = answered(settings, dialect % MESSAGE, who=who)
    assert answer["status"] == "completed", answer
    got = answer["state"]["got"]
    assert (got if dialect is REACTIVE else got["rendered"]) == f"Dear {who}, ANN, BOB"


@pytest.mark.rows("G12")
@pytest.mark.parametrize("dialect", [REACTIVE, STATEFUL])
def test_a_template_sees_nothing_but_its_variables(dialect: str, settings: Settings) -> None:
    answer = answered(settings, dialect % '"{{ who }} {{ inputs }} {{ got }}"')
    assert answer["status"] == "failed"
    assert "'who' does not exist" in answer["error"]["message"]


@pytest.mark.rows("G12")
@pytest.mark.parametrize("dialect", [REACTIVE, STATEFUL])
def test_a_malformed_template_is_found_when_the_file_is_read(dialect: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        load(dialect % '"{% for x in names %} never ends"', file="a.yaml", registry=default_registry())
    assert [(it.code, it.path) for it in refused.value.problems] == [("syntax", ("steps", 0, "template"))]
