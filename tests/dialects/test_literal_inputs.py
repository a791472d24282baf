"""Literal inputs are looked into before anything runs."""

from __future__ import annotations

import pytest

from workflows_mcp.dialects import load
from workflows_mcp.errors import DefinitionError
from workflows_mcp.steps.registry import default_registry

TEXT = """\
name: broken
blocks:
  - id: a
    type: RenderTemplate
    inputs:
      template: |
        first line
        {% for x in y %} never ends
  - {id: b, type: RenderTemplate, inputs: {template: "{{ v"}}
  - {id: c, type: RenderTemplate, inputs: {template: "${metadata.run_id} {{ v"}}
"""


@pytest.mark.rows("G12", "G24")
def test_a_malformed_template_is_found_when_the_file_is_read() -> None:
    with pytest.raises(DefinitionError) as refused:
        load(TEXT, file="broken.yaml", registry=default_registry())
    places = [(it.code, it.place.line, it.place.column) for it in refused.value.problems if it.place]
    assert places == [("syntax", 8, 9), ("syntax", 9, 55)]
