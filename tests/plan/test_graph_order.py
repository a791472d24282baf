"""Order, waves and cycles, over any graph."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.plans import Do, Node
from workflows_mcp.plan.graph import arrange, cycles, execution_waves, tolerated_by, topological, unreachable
from workflows_mcp.plan.model import Graph

Needs = list[list[int]]


@st.composite
def graphs(draw: st.DrawFn, *, cyclic: bool = False) -> Needs:
    """Dependencies by index; without cycles, under a random naming of the nodes."""
    count = draw(st.integers(1, 12))
    names = draw(st.permutations(range(count)))
    needs: Needs = [[] for _ in range(count)]
    for position in range(count):
        others = range(count) if cyclic else range(position)
        chosen = draw(st.sets(st.sampled_from(others), max_size=3)) if others else set()
        needs[names[position]] = [names[other] for other in chosen if other != position]
    return needs


def depends(needs: Needs) -> list[set[int]]:
    """All that each node depends on, directly or not, the slow and obvious way."""
    reached = [set(needed) for needed in needs]
    for _ in needs:
        for node in reached:
            node |= {far for near in list(node) for far in reached[near]}
    return reached


@pytest.mark.rows("G1")
@settings(deadline=None)
@given(graphs())
def test_every_node_comes_after_all_that_it_depends_on(needs: Needs) -> None:
    waves, order = arrange(needs)
    assert sorted(order) == list(range(len(needs)))
    for node, needed in enumerate(needs):
        assert all(order[other] < order[node] and waves[other] < waves[node] for other in needed)


@pytest.mark.rows("G2")
@settings(deadline=None)
@given(graphs())
def test_a_node_is_in_the_earliest_wave_that_its_dependencies_allow(needs: Needs) -> None:
    waves, _ = arrange(needs)
    for node, needed in enumerate(needs):
        assert waves[node] == max((waves[other] + 1 for other in needed), default=0)


@settings(deadline=None)
@given(graphs())
def test_nodes_of_one_wave_keep_the_order_in_which_they_were_written(needs: Needs) -> None:
    waves, order = arrange(needs)
    assert topological(order) == sorted(range(len(needs)), key=lambda node: (waves[node], node))


@settings(deadline=None)
@given(graphs(cyclic=True))
def test_the_order_is_complete_exactly_if_nothing_depends_on_itself(needs: Needs) -> None:
    arrangement = arrange(needs)
    everything = depends(needs)
    assert arrangement.complete == all(node not in all_of for node, all_of in enumerate(everything))


@pytest.mark.rows("G1")
@settings(deadline=None)
@given(graphs(cyclic=True))
def test_every_knot_is_named_by_a_path_in_which_each_needs_the_next(needs: Needs) -> None:
    waves, _ = arrange(needs)
    found = list(cycles(needs, waves))
    assert bool(found) == (-1 in waves)
    for cycle in found:
        assert cycle[0] == min(cycle)
        assert len(set(cycle)) == len(cycle)
        for node, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            assert following in needs[node]
    named = [node for cycle in found for node in cycle]
    assert len(set(named)) == len(named)
    # Whatever could not be placed is on a cycle that is named, or waits for one.
    everything = depends(needs)
    for node, wave in enumerate(waves):
        assert wave >= 0 or node in named or everything[node] & set(named)


@settings(deadline=None)
@given(graphs(), st.data())
def test_a_dependency_over_any_distance_is_seen(needs: Needs, data: st.DataObject) -> None:
    count = len(needs)
    pairs = data.draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=20))
    everything = depends(needs)
    missing = unreachable(needs, topological(arrange(needs).order), pairs)
    assert sorted(missing) == sorted((node, other) for node, other in pairs if other not in everything[node])


def test_more_targets_than_fit_into_one_pass_are_answered_too() -> None:
    count = 10_000
    needs = [[node - 1] if node else [] for node in range(count)]
    pairs = [(count - 1, node) for node in range(count - 1)] + [(5, 6)]
    assert unreachable(needs, range(count), pairs) == [(5, 6)]


def test_a_chain_of_ten_thousand_is_an_ordinary_graph() -> None:
    count = 10_000
    backwards = [[node + 1] if node < count - 1 else [] for node in range(count)]
    waves, order = arrange(backwards)
    assert waves == order == list(range(count - 1, -1, -1))
    backwards[-1] = [0]
    [cycle] = cycles(backwards, arrange(backwards).waves)
    assert cycle == list(range(count))


@pytest.mark.rows("G2")
def test_execution_waves_lists_ids_wave_by_wave() -> None:
    nodes = [Node(name, Do("Echo"), wave=wave) for name, wave in [("a", 0), ("d", 2), ("b", 1), ("c", 1)]]
    assert execution_waves(Graph(tuple(nodes))) == [["a"], ["b", "c"], ["d"]]
    assert execution_waves(Graph(())) == []


@pytest.mark.parametrize(
    ("required_by", "optional_for", "expected"),
    [
        ([[1], []], [[], []], [[], []]),
        ([[1], [], []], [[], [2], []], [[2], [2], []]),
        ([[1], [], []], [[2], [], []], [[2], [], []]),
        ([[1, 2], [], [], []], [[], [3], [], []], [[], [3], [], []]),
        ([[1, 2], [], [], [], []], [[], [3], [4], [], []], [[3, 4], [3], [4], [], []]),
        ([[1], [2], [], []], [[], [], [3], []], [[3], [3], [3], []]),
    ],
)
def test_a_failure_is_tolerated_by_who_does_not_need_it_or_all_that_it_skips(
    required_by: Sequence[Sequence[int]],
    optional_for: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
) -> None:
    assert tolerated_by(required_by, range(len(required_by)), optional_for) == expected
