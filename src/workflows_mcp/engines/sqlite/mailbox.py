"""Sends events to runs that another process drives, through the table `mailbox`.

    message = await mailbox.send(run_id, CancelRequested(now))   # in the process that has the event
    await mailbox.deliver(driver_of)                             # in the process that drives the run
    mailbox.answered(message)                                    # True, or raises NotExpected

The sender waits for the answer and deletes the message. If the sender has died, its answered message is
deleted after many more messages were sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import apsw

from workflows_mcp.engines.driver import Driver
from workflows_mcp.engines.sqlite.store import Store
from workflows_mcp.engines.values import decode_event, encode
from workflows_mcp.errors import NotExpected, RequestError, StoreError
from workflows_mcp.machine import Event

logger = logging.getLogger(__name__)

UNANSWERED_TURNS = 4
"""How often a sender sees a run without an owner, and its message without an answer, before it takes the run
over: an owner that has just released the run may be about to answer."""

_KEPT = 1000
"""How many messages later an answered one is deleted although its sender has not."""


class Mailbox:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._delivering: set[int] = set()

    async def send(self, run_id: str, event: Event) -> int:
        body = encode(event)

        def write(connection: apsw.Connection) -> int:
            connection.execute("INSERT INTO mailbox(run, event) VALUES(?, ?)", (run_id, body))
            message = connection.last_insert_rowid()
            old = "DELETE FROM mailbox WHERE answer IS NOT NULL AND id < ?"
            connection.execute(old, (message - _KEPT,))
            return message

        return await self._store.write(write)

    def answered(self, message: int) -> bool:
        """Whether the owner has accepted the message. Raises NotExpected if it rejected it."""
        rows = self._store.read("SELECT answer FROM mailbox WHERE id = ?", (message,))
        if not rows or rows[0][0] is None:
            return False
        if rows[0][0]:
            raise NotExpected(str(rows[0][0]))
        return True

    async def delete(self, message: int) -> None:
        await self._store.write(
            lambda connection: connection.execute("DELETE FROM mailbox WHERE id = ?", (message,)).fetchall()
        )

    async def deliver(self, driver_of: Callable[[str], Driver | None]) -> None:
        """Deliver the messages to runs that this process drives."""
        for message, run_id, body in self._store.read(
            "SELECT id, run, event FROM mailbox WHERE answer IS NULL"
        ):
            driver = driver_of(run_id)
            if driver is None or message in self._delivering:
                continue
            self._delivering.add(message)
            try:
                await self._deliver(message, driver, body)
            finally:
                self._delivering.discard(message)

    async def _deliver(self, message: int, driver: Driver, body: bytes) -> None:
        answer = ""
        try:
            await driver.send(lambda *_: decode_event(body))
        except StoreError:
            return  # the run has another owner: the message waits for that one
        except RequestError as error:
            answer = str(error)
        except Exception as error:
            logger.exception("cannot read a message to the run %s", driver.run_id)
            answer = f"cannot read the message: {error}"
        await self._store.write(
            lambda connection: connection.execute(
                "UPDATE mailbox SET answer = ? WHERE id = ?", (answer, message)
            ).fetchall()
        )
