"""The hash chain of a journal names the first event that was edited, removed, inserted or moved."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from workflows_mcp.machine import HASH_BYTES, Chain, Recorded, StoredBatch, check_chain

pytestmark = pytest.mark.rows("P7")
EVENTS = [f"event {number}".encode() for number in range(1, 10)]
Batches = list[StoredBatch]


def begin(position: int) -> Chain:
    return Chain.begin("wf_1", "key", position)


def batches(
    sizes: list[int] | None = None, events: list[bytes] = EVENTS, chain: Chain | None = None
) -> Batches:
    """A journal of batches of these sizes."""
    chain = chain or begin(0)
    found, position = [], 0
    for size in sizes or [4, 1, 4]:
        bodies = events[position : position + size]
        found.append(StoredBatch(position, bodies, chain.extend(bodies)))
        position += size
    return found


def recorded(is_final: bool = True) -> Recorded:
    chain = begin(0)
    chain.extend(EVENTS)
    return Recorded(len(EVENTS), chain.head, is_final)


def hashes_of(batch: StoredBatch) -> list[bytes]:
    assert batch.hashes is not None
    return [batch.hashes[at : at + HASH_BYTES] for at in range(0, len(batch.hashes), HASH_BYTES)]


def edit_one(given: Batches) -> Batches:
    given[0] = given[0]._replace(bodies=[*EVENTS[:2], b"other", EVENTS[3]])
    return given


def edit_the_last(given: Batches) -> Batches:
    given[2] = given[2]._replace(bodies=[*EVENTS[5:8], b"other"])
    return given


def remove_from_a_batch(given: Batches) -> Batches:
    given[0] = given[0]._replace(bodies=[EVENTS[0], *EVENTS[2:4]])
    return given


def remove_with_its_hash_and_renumber(given: Batches) -> Batches:
    hashes = hashes_of(given[0])
    given[0] = StoredBatch(0, [EVENTS[0], *EVENTS[2:4]], b"".join([hashes[0], *hashes[2:]]))
    return [given[0], *(it._replace(position=it.position - 1) for it in given[1:])]


def remove_a_batch(given: Batches) -> Batches:
    return [given[0], given[2]]


def remove_the_first_batch(given: Batches) -> Batches:
    return given[1:]


def remove_a_batch_and_renumber(given: Batches) -> Batches:
    return [given[0], given[2]._replace(position=4)]


def insert_into_a_batch(given: Batches) -> Batches:
    given[0] = given[0]._replace(bodies=[EVENTS[0], b"other", *EVENTS[1:4]])
    return [given[0], *(it._replace(position=it.position + 1) for it in given[1:])]


def insert_with_a_hash(given: Batches) -> Batches:
    hashes = hashes_of(given[0])
    other = Chain(hashes[0]).extend([b"other"])
    given[0] = StoredBatch(0, [EVENTS[0], b"other", *EVENTS[1:4]], b"".join([hashes[0], other, *hashes[1:]]))
    return [given[0], *(it._replace(position=it.position + 1) for it in given[1:])]


def insert_a_batch(given: Batches) -> Batches:
    return [given[0], StoredBatch(2, [b"other"], b"x" * HASH_BYTES), *given[1:]]


def append_a_batch(given: Batches) -> Batches:
    chain = Chain(hashes_of(given[-1])[-1])
    return [*given, StoredBatch(9, [b"other"], chain.extend([b"other"]))]


def swap_two_events(given: Batches) -> Batches:
    given[0] = given[0]._replace(bodies=[EVENTS[0], EVENTS[2], EVENTS[1], EVENTS[3]])
    return given


def swap_two_events_with_their_hashes(given: Batches) -> Batches:
    hashes = hashes_of(given[0])
    bodies = [EVENTS[0], EVENTS[2], EVENTS[1], EVENTS[3]]
    given[0] = StoredBatch(0, bodies, b"".join(hashes[number] for number in (0, 2, 1, 3)))
    return given


def cut_off_the_end(given: Batches) -> Batches:
    return given[:2]


def remove_all(given: Batches) -> Batches:
    return []


def remove_the_hashes_of_a_batch(given: Batches) -> Batches:
    given[1] = given[1]._replace(hashes=None)
    return given


def write_all_again(given: Batches) -> Batches:
    return batches(events=[*EVENTS[:2], b"other", *EVENTS[3:]])


CHANGES: list[tuple[Callable[[Batches], Batches], str, int]] = [
    (edit_one, "edited", 3),
    (edit_the_last, "edited", 9),
    (remove_from_a_batch, "removed", 1),
    (remove_with_its_hash_and_renumber, "removed", 2),
    (remove_a_batch, "removed", 5),
    (remove_the_first_batch, "removed", 1),
    (remove_a_batch_and_renumber, "removed", 5),
    (insert_into_a_batch, "inserted", 1),
    (insert_with_a_hash, "inserted", 2),
    (insert_a_batch, "inserted", 3),
    (append_a_batch, "inserted", 10),
    (swap_two_events, "reordered", 2),
    (swap_two_events_with_their_hashes, "reordered", 2),
    (cut_off_the_end, "truncated", 6),
    (remove_all, "truncated", 1),
    (remove_the_hashes_of_a_batch, "unhashed", 5),
    (write_all_again, "rewritten", 0),
]


@pytest.mark.parametrize(("change", "kind", "event"), CHANGES, ids=[it[0].__name__ for it in CHANGES])
def test_every_change_is_named_with_the_first_event_that_does_not_fit(
    change: Callable[[Batches], Batches], kind: str, event: int
) -> None:
    found = check_chain(change(batches()), begin, recorded()).mismatch
    assert found is not None
    assert (found.kind, found.event) == (kind, event), found.message


@pytest.mark.parametrize("sizes", [[9], [1] * 9, [4, 1, 4], [2, 7]])
def test_an_unchanged_journal_fits_however_it_is_cut_into_batches(sizes: list[int]) -> None:
    found = check_chain(batches(sizes), begin, recorded())
    assert found.mismatch is None
    assert (found.first, found.head) == (1, recorded().head)
    assert len(found.hashes) == HASH_BYTES * len(EVENTS)


def test_events_that_an_earlier_version_wrote_have_no_hashes_and_the_chain_begins_after_them() -> None:
    chain = begin(5)
    later = [StoredBatch(5, EVENTS[5:], chain.extend(EVENTS[5:]))]
    found = check_chain([StoredBatch(0, EVENTS[:5], None), *later], begin, Recorded(9, chain.head, True))
    assert (found.first, found.mismatch) == (6, None)
    edited = [StoredBatch(0, EVENTS[:5], None), later[0]._replace(bodies=[b"other", *EVENTS[6:]])]
    assert (found := check_chain(edited, begin, None)).mismatch is not None
    assert found.mismatch.event == 6


def test_a_run_that_continues_may_have_more_events_than_its_row_knows() -> None:
    early = begin(0)
    early.extend(EVENTS[:4])
    assert check_chain(batches(), begin, Recorded(4, early.head, False)).mismatch is None


def test_the_events_of_one_run_do_not_fit_another_run_or_another_definition() -> None:
    for other in (Chain.begin("wf_2", "key"), Chain.begin("wf_1", "other")):
        found = check_chain(batches(), lambda _, other=other: other).mismatch  # type: ignore[misc]
        assert found is not None
        assert found.event == 1
