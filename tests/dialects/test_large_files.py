"""A large file is an ordinary file. How long it takes is measured by `make bench`."""

from __future__ import annotations

import pytest

from workflows_mcp.dialects import load
from workflows_mcp.errors import DefinitionError
from workflows_mcp.steps.registry import default_registry

BLOCKS = 3_000


def large_workflow(count: int) -> str:
    lines = ["name: large", "inputs: {project: string, count: {type: integer, default: 3}}", "blocks:"]
    for number in range(count):
        before = f"block-{number - 1}"
        lines.append(f"  - id: block-{number}")
        if number % 2:
            lines += [
                "    type: RenderTemplate",
                "    inputs:",
                '      template: "Part {{ part }} of {{ project }}: {{ text }}"',
                "      variables:",
                f"        part: {number}",
                "        project: ${inputs.project}",
                f'        text: "${{blocks.{before}.outputs.stdout}}"',
            ]
        else:
            said = f"${{blocks.{before}.outputs.rendered}}" if number else ""
            lines += [
                "    type: Shell",
                "    inputs:",
                f'      command: echo "${{inputs.project}} part {number} {said}"',
                "      timeout: 30",
            ]
        if number:
            lines.append(f"    depends_on: [{before}]")
        if number % 5 == 4:
            lines.append(
                f"    condition: ${{blocks.{before}.succeeded}} and ${{inputs.count}} > {number % 7}"
            )
    return "\n".join(lines) + "\n"


def test_a_long_chain_of_blocks_is_read_checked_and_planned() -> None:
    definition = load(large_workflow(BLOCKS), file="large.yaml", registry=default_registry())
    assert len(definition.plan.body.nodes) == BLOCKS
    assert definition.plan.body.nodes[-1].wave == BLOCKS - 1


@pytest.mark.parametrize(
    "mistake",
    [
        "inputs: {{command: 'echo ${{blocks.nothing-{n}.stdout}}'}}",
        "inputs: {{command: 'true'}}, depends_on: [nothing-{n}]",
        "inputs: {{comand: 'true'}}",
    ],
)
def test_only_the_first_hundred_problems_are_reported(mistake: str) -> None:
    blocks = "\n".join(f"  - {{id: b-{n}, type: Shell, {mistake.format(n=n)}}}" for n in range(3000))
    with pytest.raises(DefinitionError) as caught:
        load(f"blocks:\n{blocks}\n", file="many.yaml", registry=default_registry())
    problems = caught.value.problems
    assert len(problems) == 101
    assert (problems[-1].code, str(problems[-1].place).split(":")[1]) == ("more", "102")


def test_only_the_first_hundred_duplicate_keys_are_reported() -> None:
    with pytest.raises(DefinitionError) as caught:
        load("a: 1\n" * 50_000, file="many.yaml", registry=default_registry())
    assert len(caught.value.problems) == 100
