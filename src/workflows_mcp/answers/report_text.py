"""Writes a report as Markdown, HTML or JSON.

    render(report, "md")      # for people and pull requests
    render(report, "html")    # one file without scripts or links to elsewhere, for archives and printers
    render(report, "json")    # for programs: every field, times in ISO 8601

Markdown and HTML have the same sections. Values of a run can be anything, so every text is escaped: it cannot
become markup, and control characters are replaced.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from workflows_mcp.answers.previews import shortened
from workflows_mcp.answers.report import Attempt, Proof, Report, ReportedStep
from workflows_mcp.machine import Checked, iso
from workflows_mcp.values import Value, to_json

Format = Literal["md", "html", "json"]
_SHOWN_CHARS = 2_000
_CELL_CHARS = 300


def render(report: Report, format: Format) -> str:
    if format == "json":
        return to_json(as_json(report), indent=2) + "\n"
    sections = list(_sections(report))
    return _markdown(sections) if format == "md" else _html(sections, report.run.id)


# ----------------------------------------------------------------------------------------------------
# JSON


def as_json(report: Report) -> dict[str, Any]:
    """The whole report as JSON data: times as text, and whether the hashes hold."""
    fields: dict[str, Any] = msgspec.to_builtins(report)
    run = {**fields.pop("run"), "outputs": report.run.outputs, "inputs": report.run.inputs}
    proof = {**fields.pop("proof"), "holds": report.proof.holds}
    return {"run": _with_times(run), **{name: _with_times(it) for name, it in fields.items()}, "proof": proof}


def _with_times(value: Any) -> Any:
    """Our own fields with times as text; values of the run have none of these names at this depth."""
    if isinstance(value, list):
        return [_with_times(it) for it in value]
    if not isinstance(value, dict):
        return value
    return {
        name: iso(it)
        if name in _TIMES and isinstance(it, float)
        else _with_times(it)
        if name in _INSIDE
        else it
        for name, it in value.items()
    }


_TIMES = {"at", "started_at", "ended_at", "changed_at"}
_INSIDE = {"attempts", "rejections", "decision"}


# ----------------------------------------------------------------------------------------------------
# The sections


class Code(str):
    """A text that is shown as it is written: an id, a path, a value."""

    __slots__ = ()


Cell = str | Code


class Table(msgspec.Struct):
    heads: list[str]
    rows: list[list[Cell]]


class Bullets(msgspec.Struct):
    lines: list[list[Cell]]


class Section(msgspec.Struct):
    title: list[Cell]
    parts: list[Table | Bullets | str]
    level: int = 2


def _sections(report: Report) -> Iterator[Section]:
    run, totals = report.run, report.totals
    yield Section(["Report of the run ", Code(run.id)], [Bullets(list(_facts(report)))], 1)
    rows = [_row(step) for step in report.steps]
    heads = ["", "step", "type", "performed by", "started", "took", "waited", "status"]
    more: list[Table | Bullets | str] = [Table(heads, rows)] if rows else ["none"]
    yield Section(["Steps"], more)
    for step in report.steps:
        if details := list(_details(step)):
            yield Section([f"Step {step.number}: ", Code(step.step)], [Bullets(details)], 3)
    yield Section(["Decisions"], [Table(
        ["event", "when", "gate", "choice", "by", "comment"],
        [
            [
                str(it.event), _time(it.at), Code(it.step), it.choice, _who(it.by),
                _comment(it.comment, it.redone),
            ]
            for it in report.decisions
        ],
    )] if report.decisions else ["none"])  # fmt: skip
    yield Section(["What happened beside the steps"], [Table(
        ["event", "when", "what", "step", "by", ""],
        [
            [
                str(it.event), _time(it.at), it.kind.replace("_", " "), Code(it.step),
                _who(it.by) if it.by is not None else "", shortened(it.text, _CELL_CHARS),
            ]
            for it in report.notes
        ],
    )] if report.notes else ["none"])  # fmt: skip
    used = [
        f"{totals.agent_steps} agent steps, {totals.sub_agents} sub-agents, {totals.tokens} tokens reported",
        f"waited {_seconds(totals.waited_for_agents)} for agents and {_seconds(totals.waited_for_people)} "
        f"for people, all steps together; parked for {_seconds(totals.parked)}",
    ]
    yield Section(["Use"], [Bullets([[it] for it in used])])
    yield Section(["Proof"], list(_proof(report.proof)))
    deviations: list[list[Cell]] = [
        [str(it.event) if it.event else "", it.kind.replace("_", " "), Code(it.step), it.text]
        for it in report.deviations
    ]
    yield Section(
        ["Deviations"], [Table(["event", "what", "step", ""], deviations)] if deviations else ["none"]
    )


def _facts(report: Report) -> Iterator[list[Cell]]:
    run, totals = report.run, report.totals
    yield ["workflow: ", Code(run.workflow), *([" from ", Code(run.file)] if run.file else [])]
    yield ["definition: ", Code(run.definition)]
    yield [f"status: {run.status}"]
    if run.error is not None:
        at = f" at '{run.error.address}'" if run.error.address else ""
        yield [f"error: {run.error.code}{at}: {run.error.message}"]
    yield [f"started: {_time(run.started_at)} by {_who(run.started_by)}"]
    if run.ended_at is not None:
        yield [f"ended: {_time(run.ended_at)}, after {_seconds(run.ended_at - run.started_at)}"]
    else:
        yield [f"last change: {_time(run.changed_at)}"]
    yield [f"steps: {totals.steps}, in {totals.events} events"]
    if run.forked_from:
        origin, _, position = run.forked_from.partition("@")
        kept = f"; {totals.kept} steps are kept from it"
        yield ["fork of ", Code(origin), f" after its event {position}{kept}"]
    if run.superseded_by:
        yield ["superseded by ", Code(run.superseded_by)]
    if run.workspace:
        yield ["workspace: ", Code(run.workspace)]
    yield ["inputs: ", _value(run.inputs)]
    if run.result is not None:
        yield ["result: ", _value(run.result)]
    elif outputs := {name: value for name, value in run.outputs.items() if value is not None}:
        yield ["outputs: ", _value(outputs)]
    if report.proof.head:
        yield ["proof: ", Code(report.proof.head)]


def _row(step: ReportedStep) -> list[Cell]:
    ended = step.ended_at
    waited = sum(it.waited for it in step.attempts)
    status = step.status if not step.failed or step.status == "failed" else f"{step.status}, failed"
    marks = [
        *(["kept"] if step.kept else []),
        *([f"redone at event {step.redone_at}"] if step.redone_at else []),
    ]
    return [
        str(step.number),
        Code(step.step),
        step.type,
        _performed_by(step),
        _time(step.started_at),
        _seconds(ended - step.started_at) if ended is not None else "",
        _seconds(waited) if waited else "",
        ", ".join([status, *marks]),
    ]


def _performed_by(step: ReportedStep) -> str:
    if step.items or step.agent:
        return f"{step.items} sub-agents ({step.agent})" if step.agent else f"{step.items} items"
    return ", ".join(dict.fromkeys(_performer(it) for it in step.attempts))


def _performer(attempt: Attempt) -> str:
    if attempt.by is not None:
        return str(attempt.by)
    return {"server": "the server", "agent": "an agent", "person": "nobody yet"}.get(attempt.performer, "")


def _details(step: ReportedStep) -> Iterator[list[Cell]]:
    """What the row of a step does not show."""
    if len(step.attempts) > 1 or any(it.interruptions for it in step.attempts):
        for it in step.attempts:
            took = f", {_seconds(it.ended_at - it.started_at)}" if it.ended_at is not None else ""
            cut_off = f", interrupted {it.interruptions} times" if it.interruptions else ""
            message = f": {shortened(it.message, _CELL_CHARS)}" if it.message else ""
            outcome = it.outcome or "under way"
            who = _performer(it)
            yield [f"attempt {it.number}{f' by {who}' if who else ''}, {_time(it.started_at)}{took}: ",
                   f"{outcome}{cut_off}{message}"]  # fmt: skip
    elif step.message:
        yield [shortened(step.message, _CELL_CHARS)]
    for rejection in step.rejections:
        who = f" of {rejection.by}" if rejection.by is not None else ""
        reasons = "; ".join(rejection.reasons)
        yield [f"result{who} rejected at event {rejection.event}: {shortened(reasons, _SHOWN_CHARS)}"]
    for check in step.checks:
        yield list(_check(check))
    if step.decision is not None:
        comment = f": {step.decision.comment}" if step.decision.comment else ""
        yield [f"decision: {step.decision.choice} by {step.decision.by}{comment}"]
    if step.tolerated_by:
        yield [f"its failure is tolerated by {step.tolerated_by}"]
    last = step.attempts[-1] if step.attempts else None
    if last is not None and last.result and (last.performer == "agent" or step.checks):
        yield ["result: ", Code(last.result)]
    if step.tokens:
        yield [f"{step.tokens} tokens"]


def _check(check: Checked) -> Iterator[Cell]:
    yield f"result {check.round}: check "
    yield Code(check.check)
    yield " passed" if check.passed else " failed"
    if check.exit_code is not None:
        yield f", exit code {check.exit_code}"
    if check.seconds:
        yield f", {_seconds(check.seconds)}"
    if check.changed:
        yield ", changed "
        yield Code(", ".join(check.changed))
    if check.message and not check.passed:
        yield f": {shortened(check.message, _SHOWN_CHARS)}"


def _proof(proof: Proof) -> Iterator[Bullets | str]:
    lines: list[list[Cell]] = []
    if not proof.head:
        yield "The events of this run have no hashes: whether they were changed cannot be shown."
    else:
        lines.append(["last hash: ", Code(proof.head)])
        covered = f"events {proof.first} to {proof.events}"
        if proof.mismatches:
            lines.append([f"{covered} are chained, and they do not hold: see Deviations"])
        else:
            lines.append([f"{covered} fit their hashes"])
    if proof.expected:
        what = f"fits event {proof.fits_at} of {proof.events}" if proof.fits_at else "fits no event"
        lines.append(["expected hash: ", Code(proof.expected), f" {what}"])
    if proof.guarantee:
        lines.append([proof.guarantee])
    elif proof.head and not proof.expected:
        lines.append(
            [
                "who can write to the store can compute all hashes again: compare with the ",
                Code("proof"),
                " of the last answer that the client has: ",
                Code("report RUN --expect HASH"),
            ]
        )
    if lines:
        yield Bullets(lines)


def _comment(comment: str, redone: Sequence[str]) -> str:
    rerun = f"runs again: {', '.join(redone)}" if redone else ""
    return "; ".join(it for it in (comment, rerun) if it)


def _who(by: object) -> str:
    return "unknown" if by is None else str(by)


def _value(value: Value) -> Code:
    return Code(shortened(to_json(value), _SHOWN_CHARS))


def _time(at: float) -> str:
    return (iso(at) or "").replace("T", " ")


def _seconds(seconds: float) -> str:
    if seconds < 0.0995:
        return f"{max(seconds, 0.0) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


# ----------------------------------------------------------------------------------------------------
# Texts of a run, made harmless

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
"""Control characters, and those that show a text in another order than it has."""
_SPACES = re.compile(r"\s+")
_MARKUP = re.compile(r"[\\`*_{}\[\]<>#!|~&$]|(?<=[a-z]):(?=//)|(?<=www)\.", re.IGNORECASE)
"""What could be markup in Markdown; also what turns an address into a link."""
_BEGINS = re.compile(r"^(\s*)([-+=])|^(\s*[0-9]+)([.)])")
"""What begins a list or a heading at the start of a line."""
_FENCES = re.compile(r"`+")


def _plain(text: str) -> str:
    """A text on one line, without control characters."""
    return _CONTROLS.sub("�", _SPACES.sub(" ", text))


# Markdown


def _markdown(sections: Sequence[Section]) -> str:
    parts: list[str] = []
    for section in sections:
        parts.append(f"{'#' * section.level} {_md_line(section.title)}")
        for part in section.parts:
            if isinstance(part, str):
                parts.append(_md(part))
            elif isinstance(part, Table):
                parts.append(_md_table(part))
            else:
                parts.append("\n".join(f"- {_md_line(line)}" for line in part.lines))
    return "\n\n".join(parts) + "\n"


def _md(text: Cell) -> str:
    """A text of the run in Markdown: as code, or with every mark escaped that could become markup."""
    clean = _plain(text)
    if isinstance(text, Code):
        return _md_code(clean.strip())
    return _MARKUP.sub(r"\\\g<0>", _BEGINS.sub(r"\1\3\\\2\4", clean))


def _md_code(text: str) -> str:
    if not text:
        return ""
    longest = max((len(it) for it in _FENCES.findall(text)), default=0)
    fence, room = "`" * (longest + 1), " " if "`" in (text[0], text[-1]) else ""
    return f"{fence}{room}{text}{room}{fence}"


def _md_line(line: Sequence[Cell]) -> str:
    return "".join(map(_md, line)).strip()


def _md_table(table: Table) -> str:
    rows = [table.heads, ["---"] * len(table.heads), *([_cell(it) for it in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(text: Cell) -> str:
    """In a table, a bar ends a cell even inside of code."""
    shown = _md(text).strip()
    return re.sub(r"(?<!\\)\|", r"\\|", shown) if isinstance(text, Code) else shown


# HTML

_STYLE = """
:root { color-scheme: light dark; --line: #8886; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
  background: Canvas; color: CanvasText; }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2rem } h3 { font-size: 1rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .25rem .5rem; border-bottom: 1px solid var(--line) }
code { font: 13px/1.4 ui-monospace, monospace; overflow-wrap: anywhere }
@media print { body { margin: 0; max-width: none; font-size: 10pt } h2, h3, tr { break-inside: avoid } }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def _html(sections: Sequence[Section], run_id: str) -> str:
    parts: list[str] = []
    for section in sections:
        level = f"h{section.level}"
        parts.append(f"<{level}>{''.join(map(_ht, section.title))}</{level}>")
        for part in section.parts:
            if isinstance(part, str):
                parts.append(f"<p>{_ht(part)}</p>")
            elif isinstance(part, Table):
                parts.append(_ht_table(part))
            else:
                lines = "".join(f"<li>{''.join(map(_ht, line))}</li>" for line in part.lines)
                parts.append(f"<ul>{lines}</ul>")
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_ht(f'Report of {run_id}')}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _ht(text: Cell) -> str:
    clean = html.escape(_CONTROLS.sub("�", text))
    return f"<code>{clean}</code>" if isinstance(text, Code) and clean else clean


def _ht_table(table: Table) -> str:
    heads = "".join(f"<th>{_ht(it)}</th>" for it in table.heads)
    rows = "\n".join(f"<tr>{''.join(f'<td>{_ht(it)}</td>' for it in row)}</tr>" for row in table.rows)
    return f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
