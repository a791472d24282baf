"""docs/process.md names what the code has: the variables of agents, the roles of tokens, the names of a push back."""

from __future__ import annotations

import re
from pathlib import Path

from workflows_mcp.runs.callers import AGENT_VARIABLES
from workflows_mcp.runs.decisions import MOST_REFUSALS, NUMBERS
from workflows_mcp.settings.http import ROLES
from workflows_mcp.steps.gate import GateInputs, GateOutputs

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "process.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    level = heading.split(maxsplit=1)[0]
    found = TEXT.partition(f"\n{heading}\n")[2]
    assert found, heading
    return re.split(rf"\n#{{2,{len(level)}}} ", found)[0]


def test_the_page_names_the_variables_by_which_the_terminal_knows_an_agent() -> None:
    listed = TEXT.partition("<!-- variables of agents -->")[2].partition("<!-- end of variables -->")[0]
    assert tuple(re.findall(r"`(\w+)`", listed)) == AGENT_VARIABLES


def test_the_page_has_the_inputs_and_outputs_of_a_gate() -> None:
    text = section("## Gates")
    assert [
        name for name in (*GateInputs.model_fields, *GateOutputs.model_fields) if f"`{name}`" not in text
    ] == []


def test_the_page_has_every_number_of_a_budget_and_how_many_refusals_are_kept() -> None:
    assert [name for name in NUMBERS if f"`{name}`" not in section("## Budgets")] == []
    assert f"the first {MOST_REFUSALS} of a run" in TEXT


def test_the_page_about_http_has_every_role_of_a_token() -> None:
    text = (
        (DOCS / "http.md").read_text(encoding="utf-8").partition("### Named tokens")[2].partition("\n## ")[0]
    )
    assert [role for role in ROLES if f"| `{role}`" not in text] == []


def test_each_complaint_has_a_recipe_that_leads_to_a_mechanism() -> None:
    recipes = re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", section("## Recipes"), re.M | re.S)
    assert len(recipes) == 8
    headings = {
        re.sub(r"[^\w -]", "", it).lower().replace(" ", "-") for it in re.findall(r"^#+ (.*)$", TEXT, re.M)
    }
    for name, text in recipes:
        assert re.findall(r"\]\(#([\w-]+)\)|`budget", text), name
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) - headings == set()
