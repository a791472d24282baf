"""Who changes the store behind the back of the server is found out by the report of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec
import pytest

from workflows_mcp.answers import Report, render
from workflows_mcp.engines.values import join_events, split_events
from workflows_mcp.errors import Damaged, RequestError
from workflows_mcp.machine import HASH_BYTES, Chain, Identity
from workflows_mcp.runs import Service
from workflows_mcp.settings.model import Settings

pytestmark = pytest.mark.rows("P7")
ADA = Identity("ada", "terminal", human=True)
PROCESS = """
name: process
initial_state: {}
steps:
  - {id: plan, type: prompt, needs_state: [], prompt_type: text, message: "The plan?", verify: ["result.input | length > 3"]}
  - {id: log, type: delegate, needs_state: [], instructions: "Write a long log", output_to: log}
  - {id: approve, type: gate, needs_state: [], message: "Release?"}
  - {id: last, type: prompt, needs_state: [], prompt_type: text, message: "Anything else?"}
"""
LONG = "a long line of the log\n" * 40_000
Row = tuple[int, bytes, bytes]
Events = list[dict[str, Any]]


class Place(NamedTuple):
    settings: Settings
    run_id: str
    proof: str
    fork: str

    def report(self, run_id: str = "", expected: str = "") -> Report:
        async def go() -> Report:
            async with Service.open(self.settings, recovers=False) as service:
                return await service.report(run_id or self.run_id, expected=expected)

        return asyncio.run(go())

    def store(self) -> apsw.Connection:
        return apsw.Connection(str(self.settings.home / "runs.db"))

    def sql(self, *statements: str) -> None:
        connection = self.store()
        for statement in statements:
            connection.execute(statement, {"run": self.run_id, "fork": self.fork}).fetchall()
        connection.close()

    def rows(self) -> list[Row]:
        connection = self.store()
        found: Any = connection.execute(
            "SELECT position, events, hashes FROM journal WHERE run = ? ORDER BY position", (self.run_id,)
        ).fetchall()
        connection.close()
        return found  # type: ignore[no-any-return]

    def edit(self, event: str, change: Callable[[dict[str, Any]], None]) -> int:
        """Change the first event of a type; return its number."""
        for position, body, _ in self.rows():
            events = [msgspec.msgpack.decode(it) for it in split_events(body)]
            for number, it in enumerate(events):
                if it["type"] == event:
                    change(it)
                    self._write(position, events)
                    return position + number + 1
        raise AssertionError(f"there is no event {event}")

    def _write(self, position: int, events: Events) -> None:
        body = join_events([msgspec.msgpack.encode(it) for it in events])
        connection = self.store()
        where = (body, self.run_id, position)
        connection.execute("UPDATE journal SET events = ? WHERE run = ? AND position = ?", where)
        connection.close()

    def write_all_again(self) -> None:
        """Compute all hashes again, as somebody does who knows how."""
        connection = self.store()
        [(key,)] = connection.execute("SELECT bundle FROM runs WHERE id = ?", (self.run_id,)).fetchall()
        chain = Chain.begin(self.run_id, str(key))
        for position, body, _ in self.rows():
            hashes = chain.extend(split_events(body))
            where = (hashes, self.run_id, position)
            connection.execute("UPDATE journal SET hashes = ? WHERE run = ? AND position = ?", where)
        connection.execute("UPDATE runs SET head = ? WHERE id = ?", (chain.head, self.run_id))
        connection.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A run that has ended, and a fork of it that waits."""
    given = Settings(workspace=tmp_path, home=tmp_path / "home")

    async def go() -> Place:
        async with Service.open(given) as service:
            run_id = (await service.start(text=PROCESS)).workflow_id
            await service.submit(run_id, "no")
            await service.submit(run_id, "a good plan")
            await service.submit(run_id, LONG)
            with pytest.raises(RequestError):
                await service.submit(run_id, "approve", step_id="approve")
            await service.decide(run_id, "approve", by=ADA, comment="fine")
            answer = await service.submit(run_id, "nothing")
            assert answer.status == "completed"
            fork = await service.fork(run_id, "last")
            return Place(given, run_id, answer.proof, fork.workflow_id)

    return asyncio.run(go())


def test_the_report_of_an_untouched_run_holds_and_fits_the_proof_of_its_last_answer(place: Place) -> None:
    report = place.report(expected=place.proof)
    assert report.proof.holds
    assert (report.proof.first, report.proof.fits_at) == (1, report.proof.events)
    assert report.proof.head.startswith(place.proof)
    assert len(place.proof) == 16
    assert [it.kind for it in report.deviations] == ["rejected_result", "refused"]
    assert place.report(place.fork).proof.holds


def agents_result(it: dict[str, Any]) -> None:
    it["outputs"] = {"input": "another plan"}


def who_decided(it: dict[str, Any]) -> None:
    it["by"]["name"] = "grace"


def the_refusal(it: dict[str, Any]) -> None:
    it["message"] = "nothing worth mentioning"


def remove_events(place: Place, event: str) -> None:
    for position, body, hashes in place.rows():
        bodies = split_events(body)
        kept = [
            (it, hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES])
            for at, it in enumerate(bodies)
            if msgspec.msgpack.decode(it)["type"] != event
        ]
        connection = place.store()
        values = (join_events([it for it, _ in kept]), b"".join(it for _, it in kept), place.run_id, position)
        connection.execute("UPDATE journal SET events = ?, hashes = ? WHERE run = ? AND position = ?", values)
        connection.close()


def insert_a_decision(place: Place) -> None:
    """Before the last event, as if a person had decided once more."""
    position, body, hashes = place.rows()[-1]
    decided = {
        "type": "decided", "at": 1.0, "address": "approve", "choice": "approve",
        "by": {"name": "ada", "via": "terminal", "human": True},
    }  # fmt: skip
    bodies = [msgspec.msgpack.encode(decided), *split_events(body)]
    connection = place.store()
    values = (join_events(bodies), b"\0" * HASH_BYTES + hashes, place.run_id, position)
    connection.execute("UPDATE journal SET events = ?, hashes = ? WHERE run = ? AND position = ?", values)
    connection.close()


def swap_the_last_rows(place: Place) -> None:
    (one, body_one, hashes_one), (two, body_two, hashes_two) = place.rows()[-2:]
    assert len(split_events(body_one)) == len(split_events(body_two)) == 1
    connection = place.store()
    update = "UPDATE journal SET events = ?, hashes = ? WHERE run = ? AND position = ?"
    connection.execute(update, (body_two, hashes_two, place.run_id, one))
    connection.execute(update, (body_one, hashes_one, place.run_id, two))
    connection.close()


def edit_the_definition(place: Place) -> None:
    connection = place.store()
    [(key, body)] = connection.execute(
        "SELECT key, body FROM bundles JOIN runs ON bundle = key WHERE id = ?", (place.run_id,)
    ).fetchall()
    assert isinstance(body, bytes)
    changed = body.replace(b"Release?", b"Go home?")
    assert changed != body
    connection.execute("UPDATE bundles SET body = ? WHERE key = ?", (changed, key))
    connection.close()


def pin_to_another_definition(place: Place) -> None:
    async def go() -> None:
        async with Service.open(place.settings) as service:
            await service.start(text=PROCESS.replace("Release?", "Go home?"))

    asyncio.run(go())
    place.sql(
        "UPDATE runs SET bundle = (SELECT bundle FROM runs WHERE id NOT IN (:run, :fork)) WHERE id = :run"
    )


def snapshot_of_the_fork(place: Place) -> None:
    connection = place.store()
    [(body,)] = connection.execute("SELECT body FROM snapshots WHERE run = ?", (place.fork,)).fetchall()
    assert isinstance(body, bytes)
    changed = body.replace(b"a good plan", b"a bad plan!")
    assert changed != body
    connection.execute("UPDATE snapshots SET body = ? WHERE run = ?", (changed, place.fork))
    connection.close()


TAMPERINGS: dict[str, tuple[Callable[[Place], object], str]] = {
    "edit the result of an agent": (lambda it: it.edit("answered", agents_result), "event 2 was edited"),
    "edit who decided": (lambda it: it.edit("decided", who_decided), "was edited"),
    "edit a refusal": (lambda it: it.edit("refused", the_refusal), "was edited"),
    "remove a refusal": (lambda it: remove_events(it, "refused"), "event 5 is missing"),
    "remove the rejected result": (
        lambda it: it.sql("DELETE FROM journal WHERE run = :run AND position = 1"),
        "event 2 is missing in the journal",
    ),
    "insert a decision": (insert_a_decision, "inserted"),
    "swap two events": (swap_the_last_rows, "was moved"),
    "cut off the end": (
        lambda it: it.sql(
            "DELETE FROM journal WHERE run = :run AND position ="
            " (SELECT max(position) FROM journal WHERE run = :run)"
        ),
        "the last event is missing",
    ),
    "remove the journal": (lambda it: it.sql("DELETE FROM journal WHERE run = :run"), "missing"),
    "write noise over a batch": (
        lambda it: it.sql("UPDATE journal SET events = x'c1c1' WHERE run = :run AND position = 1"),
        "event 2 was edited",
    ),
    "remove the hashes of the last events": (
        lambda it: it.sql("UPDATE journal SET hashes = NULL WHERE run = :run AND position > 2"),
        "has no hash, although",
    ),
    "remove all hashes": (
        lambda it: it.sql(
            "UPDATE journal SET hashes = NULL WHERE run = :run", "UPDATE runs SET head = NULL WHERE id = :run"
        ),
        "have no hash",
    ),
    "edit the definition": (edit_the_definition, "the definition does not fit its hash"),
    "pin the run to another definition": (pin_to_another_definition, "started with another definition"),
    "edit a large value": (
        lambda it: it.sql("UPDATE blobs SET body = CAST('x' || substr(body, 2) AS BLOB)"),
        "a large value of event 4 was edited",
    ),
    "remove a large value": (lambda it: it.sql("DELETE FROM blobs"), "a large value of event 4 is missing"),
    "mark the run as failed": (
        lambda it: it.sql("UPDATE runs SET status = 'failed' WHERE id = :run"),
        "listed as failed, but its events leave it completed",
    ),
    "compute the hashes again": (
        lambda it: (it.edit("answered", agents_result), it.write_all_again(), it.sql(
            "UPDATE runs SET head = zeroblob(32) WHERE id = :run"
        )),
        "computed again",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERINGS)
def test_every_change_of_the_store_is_evident_in_the_report(place: Place, name: str) -> None:
    tamper, message = TAMPERINGS[name]
    before = place.report()
    tamper(place)
    report = place.report()
    found = [it.text for it in report.deviations if it.kind in ("changed_store", "no_hashes")]
    assert message in " | ".join(found), found
    assert report.deviations[0].text == found[0], "what was changed comes first"
    assert found[0] in render(report, "html").replace("&#x27;", "'")
    assert render(report, "md").count("\n") > 20
    assert not place.report(expected=place.proof).proof.holds
    assert before.proof.holds


def test_a_snapshot_that_was_edited_is_evident(place: Place) -> None:
    snapshot_of_the_fork(place)
    report = place.report(place.fork)
    assert [it.kind for it in report.proof.mismatches] == ["snapshot"]
    assert "the snapshot after event" in report.deviations[0].text


def test_a_status_that_was_edited_is_evident(place: Place) -> None:
    place.sql("UPDATE runs SET status = 'completed' WHERE id = :fork")
    assert "its events leave it running" in place.report(place.fork).deviations[0].text


def test_who_computes_all_hashes_again_is_found_out_only_by_the_proof_that_the_client_has(
    place: Place,
) -> None:
    place.edit("answered", agents_result)
    place.write_all_again()
    assert place.report().proof.holds, "nothing in the store shows it"
    report = place.report(expected=place.proof)
    assert not report.proof.holds
    assert f"no event has the expected hash {place.proof}" in report.deviations[0].text


def test_a_run_whose_definition_is_gone_cannot_be_reported_and_says_so(place: Place) -> None:
    place.sql("UPDATE bundles SET body = x'00'")
    with pytest.raises(Damaged, match="cannot read the definition"):
        place.report()


def test_what_is_expected_must_be_a_hash(place: Place) -> None:
    for text in ("9f86", "not a hash", "zz" * 8):
        with pytest.raises(RequestError, match="is not a hash of a journal"):
            place.report(expected=text)


def test_a_fork_of_a_run_that_was_edited_has_hashes_of_its_own_and_names_its_origin(place: Place) -> None:
    place.edit("answered", agents_result)
    assert place.report(place.fork).proof.holds
    assert place.report(place.fork).run.forked_from.startswith(f"{place.run_id}@")
