"""Events for runs that another process drives: posted into the store, taken in by the owner, answered.

Whoever posts a letter waits for its answer and takes it away again. Answers that nobody has come for, because
the sender has gone, are thrown away when many more letters have been posted since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import apsw

from workflows_mcp.engines.driver import Driver, send_to
from workflows_mcp.engines.sqlite.store import Store
from workflows_mcp.engines.values import decode_event, encode
from workflows_mcp.errors import NotExpected, RequestError, StoreError
from workflows_mcp.machine import Event

logger = logging.getLogger(__name__)

UNSEEN_TURNS = 4
"""How often a run is seen without an owner, and a letter to it without an answer, before somebody else takes
it in: an owner that has done so and come to rest may be about to answer."""

_KEPT = 1000
"""How many letters later an answer is thrown away that nobody has come for."""


class Mailbox:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._in_hand: set[int] = set()

    async def send(self, run_id: str, event: Event) -> int:
        body = encode(event)

        def write(connection: apsw.Connection) -> int:
            connection.execute("INSERT INTO inbox(run, event) VALUES(?, ?)", (run_id, body))
            message = connection.last_insert_rowid()
            old = "DELETE FROM inbox WHERE answer IS NOT NULL AND id < ?"
            connection.execute(old, (message - _KEPT,))
            return message

        return await self._store.write(write)

    def answered(self, message: int) -> bool:
        """Whether the owner has taken it in; raises NotExpected where it has refused it."""
        rows = self._store.read("SELECT answer FROM inbox WHERE id = ?", (message,))
        if not rows or rows[0][0] is None:
            return False
        if rows[0][0]:
            raise NotExpected(str(rows[0][0]))
        return True

    async def forget(self, message: int) -> None:
        await self._store.write(
            lambda connection: connection.execute("DELETE FROM inbox WHERE id = ?", (message,)).fetchall()
        )

    async def deliver(self, driver_of: Callable[[str], Driver | None]) -> None:
        """Hand letters to the runs that are driven here."""
        for message, run_id, body in self._store.read(
            "SELECT id, run, event FROM inbox WHERE answer IS NULL"
        ):
            driver = driver_of(run_id)
            if driver is None or message in self._in_hand:
                continue
            self._in_hand.add(message)
            try:
                await self._deliver(message, driver, body)
            finally:
                self._in_hand.discard(message)

    async def _deliver(self, message: int, driver: Driver, body: bytes) -> None:
        answer = ""
        try:
            await send_to(driver, lambda *_: decode_event(body), 0.0)
        except StoreError:
            return  # it is not ours any more: the letter waits for the next owner
        except RequestError as error:
            answer = str(error)
        except Exception as error:
            logger.exception("a letter to the run %s cannot be read", driver.run_id)
            answer = f"the letter cannot be read: {error}"
        await self._store.write(
            lambda connection: connection.execute(
                "UPDATE inbox SET answer = ? WHERE id = ?", (answer, message)
            ).fetchall()
        )
