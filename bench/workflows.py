"""The workflows that are measured, and the step that costs nothing."""

from __future__ import annotations

from workflows_mcp.steps.base import Step, StepContext, StepInputs, StepOutputs, StepResult


class Tick(Step):
    """Does nothing, and says that repeating it would be noticed: what is left is the price of durability."""

    name = "Tick"

    class Inputs(StepInputs):
        word: str = ""

    class Outputs(StepOutputs):
        rendered: str = ""

    def run(self, inputs: Inputs, context: StepContext) -> StepResult:
        return StepResult({"rendered": inputs.word})


_HEAD = "name: measured\ninputs:\n  word:\n    type: string\nblocks:\n"
_INPUTS = {
    "Tick": "      word: '{value}'\n",
    "RenderTemplate": "      template: 'step {{{{ n }}}}'\n      variables:\n        n: '{value}'\n",
    "Shell": "      command: 'true'\n",
    "Prompt": "      prompt: 'about {value}?'\n",
}


def chain(step: str, blocks: int) -> str:
    """Each block reads the output of the one before it."""
    return _HEAD + "".join(
        _block(step, i, f"${{blocks.b{i - 1}.outputs.rendered}}" if i and i % 10 else "${inputs.word}", i > 0)
        for i in range(blocks)
    )


def questions(blocks: int) -> str:
    """The agent is asked one thing after the other."""
    return _HEAD + "".join(_block("Prompt", i, "${inputs.word}", i > 0) for i in range(blocks))


def fan_out(step: str, blocks: int) -> str:
    return _HEAD + "".join(_block(step, i, "${inputs.word}", False) for i in range(blocks))


def _block(step: str, i: int, value: str, after: bool) -> str:
    inputs = _INPUTS[step].format(value=value)
    depends = f"    depends_on: [b{i - 1}]\n" if after else ""
    return f"  - id: b{i}\n    type: {step}\n    inputs:\n{inputs}{depends}"


def realistic(blocks: int) -> str:
    """A large file as people write them: commands, templates, dependencies, some conditions."""
    lines = ["name: large", "description: A file with many blocks", "inputs:"]
    lines += ["  environment:", "    type: string", "    default: staging", "blocks:"]
    for i in range(blocks):
        before = f"step_{i - 1}"
        lines += [f"  - id: step_{i}", f"    description: Step number {i} of the process"]
        if i % 3 == 2:
            lines += ["    type: RenderTemplate", "    inputs:"]
            lines += ['      template: "Report {{ number }}: {{ last }}"', "      variables:"]
            lines += [f"        number: {i}", f'        last: "${{blocks.{before}.outputs.stdout}}"']
        else:
            previous = "${inputs.environment}" if i % 3 == 0 else f"${{blocks.{before}.outputs.exit_code}}"
            lines += ["    type: Shell", "    inputs:"]
            lines += [f'      command: echo "working on {i} after {previous}"', "      timeout: 60"]
        if i:
            lines.append(f"    depends_on: [{before}]")
        if i and i % 5 == 0:
            went = f"${{blocks.{before}.succeeded}}"
            lines.append(f"    condition: \"{went} and ${{inputs.environment}} != 'none'\"")
    lines += ["outputs:", f'  last: "${{blocks.step_{blocks - 1}.status}}"']
    return "\n".join(lines) + "\n"
