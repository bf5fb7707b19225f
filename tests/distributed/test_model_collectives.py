"""The formulas of collectives against the algorithms themselves, run message by message on P ranks.

Every rank holds real numbers and a clock. A message of n bytes takes alpha + n beta and begins when both ranks
are ready; combining n bytes takes n gamma. The algorithms below are written from their papers, apart from the
package; each must leave the right numbers on the right ranks, and its last clock must be the formula's time.
"""

import math
from itertools import pairwise

import numpy as np
import pytest

from meta500.distributed.model import collectives
from meta500.distributed.model.collectives import ALGORITHMS, rounds_of, totals
from meta500.errors import UserError

ALPHA, BETA, GAMMA = 3.0, 0.5, 0.125  # sums of these are exact in float64
RANKS = [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 16, 17, 32, 33]
POWERS = [1, 2, 4, 8, 16, 32]


class Ranks:
    """P ranks with ``cells`` numbers of one byte each, and their clocks."""

    def __init__(self, count, cells, seed=0):
        self.count, self.cells = count, cells
        self.data = np.random.default_rng(seed).integers(0, 1000, (count, cells)).astype(float)
        self.first = self.data.copy()
        self.clock = np.zeros(count)

    def step(self, sends):
        """Messages of one round: (source, destination, slice, combine); pairs may send to each other."""
        before, clock = self.data.copy(), self.clock.copy()
        for source, target, part, combine in sends:
            nbytes = part.stop - part.start
            begin = max(clock[source], clock[target])
            end = begin + ALPHA + BETA * nbytes
            self.clock[source] = max(self.clock[source], end)
            self.clock[target] = max(self.clock[target], end + (GAMMA * nbytes if combine else 0.0))
            received = before[source, part]
            self.data[target, part] = before[target, part] + received if combine else received


def whole(ranks):
    return slice(0, ranks.cells)


def power_below(count):
    power = 1
    while 2 * power <= count:
        power *= 2
    return power


def fold_in(ranks):
    """The even ones of the first 2 (P − P') ranks give theirs to the odd ones; who takes part further."""
    rest = ranks.count - power_below(ranks.count)
    ranks.step([(2 * i, 2 * i + 1, whole(ranks), True) for i in range(rest)])
    return [2 * i + 1 for i in range(rest)] + list(range(2 * rest, ranks.count)), rest


def fold_out(ranks, rest):
    ranks.step([(2 * i + 1, 2 * i, whole(ranks), False) for i in range(rest)])


def recursive_doubling(ranks):
    members, rest = fold_in(ranks)
    distance = 1
    while distance < len(members):
        ranks.step([(members[i], members[i ^ distance], whole(ranks), True) for i in range(len(members))])
        distance *= 2
    fold_out(ranks, rest)


def halve(ranks, members):
    """Recursive halving; the slice that each member ends up with."""
    own = [whole(ranks)] * len(members)
    distance = 1
    while distance < len(members):
        sends, kept = [], []
        for i, part in enumerate(own):
            middle = (part.start + part.stop) // 2
            low, high = slice(part.start, middle), slice(middle, part.stop)
            upper = bool(i & distance)
            kept.append(high if upper else low)
            sends.append((members[i], members[i ^ distance], low if upper else high, True))
        ranks.step(sends)
        own = kept
        distance *= 2
    return own


def rabenseifner(ranks):
    members, rest = fold_in(ranks)
    own = halve(ranks, members)
    distance = len(members) // 2
    while distance:
        ranks.step([(members[i], members[i ^ distance], own[i], False) for i in range(len(members))])
        own = [joined(own[i], own[i ^ distance]) for i in range(len(members))]
        distance //= 2
    fold_out(ranks, rest)


def reduce_rabenseifner(ranks):
    members, _ = fold_in(ranks)
    own = halve(ranks, members)
    distance = len(members) // 2
    while distance:
        # Halving sorted the parts by the bits of the rank from the lowest on, so those are collected last.
        senders = [i for i in range(len(members)) if i & distance and i < 2 * distance]
        ranks.step([(members[i], members[i ^ distance], own[i], False) for i in senders])
        for i in senders:
            own[i ^ distance] = joined(own[i], own[i ^ distance])
        distance //= 2
    return members[0]


def joined(a, b):
    assert a.stop == b.start or b.stop == a.start
    return slice(min(a.start, b.start), max(a.stop, b.stop))


def ring_parts(ranks):
    size = ranks.cells // ranks.count
    return [slice(i * size, (i + 1) * size) for i in range(ranks.count)]


def ring(ranks):
    count, parts = ranks.count, ring_parts(ranks)
    for step in range(count - 1):
        ranks.step([(i, (i + 1) % count, parts[(i - step) % count], True) for i in range(count)])
    for step in range(count - 1):
        ranks.step([(i, (i + 1) % count, parts[(i + 1 - step) % count], False) for i in range(count)])


def binomial_broadcast(ranks):
    top = 1
    while top < ranks.count:
        top *= 2
    distance = top // 2
    while distance:
        senders = [i for i in range(0, ranks.count, 2 * distance) if i + distance < ranks.count]
        ranks.step([(i, i + distance, whole(ranks), False) for i in senders])
        distance //= 2


def binomial_reduce(ranks):
    distance = 1
    while distance < ranks.count:
        receivers = [i for i in range(0, ranks.count, 2 * distance) if i + distance < ranks.count]
        ranks.step([(i + distance, i, whole(ranks), True) for i in receivers])
        distance *= 2


def scatter_allgather(ranks):
    parts = ring_parts(ranks)
    top = 1
    while top < ranks.count:
        top *= 2
    distance = top // 2
    while distance:
        sends = []
        for i in range(0, ranks.count, 2 * distance):
            if i + distance < ranks.count:
                last = min(i + 2 * distance, ranks.count)
                sends.append((i, i + distance, slice(parts[i + distance].start, parts[last - 1].stop), False))
        ranks.step(sends)
        distance //= 2
    allgather_ring(ranks)


def allgather_ring(ranks):
    count, parts = ranks.count, ring_parts(ranks)
    for step in range(count - 1):
        ranks.step([(i, (i + 1) % count, parts[(i - step) % count], False) for i in range(count)])


def seconds(operation, algorithm, count, nbytes):
    return totals(rounds_of(operation, count, nbytes, algorithm)).seconds(ALPHA, BETA, GAMMA)


ALLREDUCE = {"recursive-doubling": recursive_doubling, "rabenseifner": rabenseifner, "ring": ring}


@pytest.mark.parametrize("algorithm", ALLREDUCE)
@pytest.mark.parametrize("count", RANKS)
def test_allreduce_takes_the_time_of_its_messages_and_sums(algorithm, count):
    ranks = Ranks(count, cells=32 * count)
    ALLREDUCE[algorithm](ranks)
    np.testing.assert_array_equal(ranks.data, np.tile(ranks.first.sum(0), (count, 1)))
    assert ranks.clock.max() == seconds("allreduce", algorithm, count, ranks.cells)


@pytest.mark.parametrize("count", RANKS)
def test_rabenseifner_reduce_takes_the_time_of_its_messages(count):
    ranks = Ranks(count, cells=32 * count)
    root = reduce_rabenseifner(ranks)
    np.testing.assert_array_equal(ranks.data[root], ranks.first.sum(0))
    assert ranks.clock.max() == seconds("reduce", "rabenseifner", count, ranks.cells)


@pytest.mark.parametrize("count", RANKS)
def test_binomial_trees_take_the_time_of_their_messages(count):
    ranks = Ranks(count, cells=24)
    binomial_broadcast(ranks)
    np.testing.assert_array_equal(ranks.data, np.tile(ranks.first[0], (count, 1)))
    assert ranks.clock.max() == seconds("broadcast", "binomial", count, 24)
    ranks = Ranks(count, cells=24)
    binomial_reduce(ranks)
    np.testing.assert_array_equal(ranks.data[0], ranks.first.sum(0))
    assert ranks.clock.max() == seconds("reduce", "binomial", count, 24)


@pytest.mark.parametrize("count", POWERS)
def test_scatter_and_allgather_broadcast_takes_the_time_of_its_messages(count):
    ranks = Ranks(count, cells=8 * count)
    scatter_allgather(ranks)
    np.testing.assert_array_equal(ranks.data, np.tile(ranks.first[0], (count, 1)))
    assert ranks.clock.max() == seconds("broadcast", "scatter-allgather", count, ranks.cells)


@pytest.mark.parametrize("count", RANKS)
def test_allgathers_take_the_time_of_their_messages(count):
    ranks = Ranks(count, cells=8 * count)
    allgather_ring(ranks)
    expected = np.concatenate([ranks.first[i, part] for i, part in enumerate(ring_parts(ranks))])
    np.testing.assert_array_equal(ranks.data, np.tile(expected, (count, 1)))
    assert ranks.clock.max() == seconds("allgather", "ring", count, 8)

    clock, held = np.zeros(count), [[i] for i in range(count)]
    distance = 1
    while distance < count:
        send = min(distance, count - distance)
        begin = [max(clock[i], clock[(i + distance) % count]) for i in range(count)]
        clock = np.array([max(begin[i], begin[i - distance]) + ALPHA + BETA * 8 * send for i in range(count)])
        held = [held[i] + held[(i + distance) % count][:send] for i in range(count)]
        distance *= 2
    assert [sorted(mine) for mine in held] == [list(range(count))] * count
    assert clock.max() == seconds("allgather", "bruck", count, 8)


@pytest.mark.parametrize("count", RANKS)
def test_the_dissemination_barrier_waits_for_all(count):
    heard = [{i} for i in range(count)]
    entries = rounds_of("barrier", count, 0)
    for entry in entries:
        heard = [heard[i] | heard[i - entry.distance] for i in range(count)]
    assert heard == [set(range(count))] * count
    assert totals(entries).messages == math.ceil(math.log2(count))


@pytest.mark.parametrize("count", POWERS[1:])
def test_the_published_formulas(count):
    """Thakur, Rabenseifner and Gropp 2005, for powers of two, with n = 960 bytes."""
    n, lg, share = 960, math.log2(count), (count - 1) / count
    formulas = {
        ("broadcast", "binomial"): (lg, lg * n, 0),
        ("broadcast", "scatter-allgather"): (lg + count - 1, 2 * share * n, 0),
        ("reduce", "binomial"): (lg, lg * n, lg * n),
        ("reduce", "rabenseifner"): (2 * lg, 2 * share * n, share * n),
        ("allreduce", "recursive-doubling"): (lg, lg * n, lg * n),
        ("allreduce", "rabenseifner"): (2 * lg, 2 * share * n, share * n),
        ("allreduce", "ring"): (2 * (count - 1), 2 * share * n, share * n),
        ("allgather", "ring"): (count - 1, (count - 1) * n, 0),
        ("allgather", "bruck"): (lg, (count - 1) * n, 0),
        ("barrier", "dissemination"): (lg, 0, 0),
    }
    assert set(formulas) == {(o, a) for o, known in ALGORITHMS.items() for a in known}
    for (operation, algorithm), expected in formulas.items():
        found = totals(rounds_of(operation, count, n, algorithm))
        assert (found.messages, found.sent, found.reduced) == pytest.approx(expected, rel=1e-14), operation


def test_a_ring_of_uneven_parts_stays_within_one_cell_per_message():
    count, cells = 7, 100
    ranks = Ranks(count, cells)
    edges = [round(i * cells / count) for i in range(count + 1)]
    parts = [slice(a, b) for a, b in pairwise(edges)]
    for step in range(count - 1):
        ranks.step([(i, (i + 1) % count, parts[(i - step) % count], True) for i in range(count)])
    for step in range(count - 1):
        ranks.step([(i, (i + 1) % count, parts[(i + 1 - step) % count], False) for i in range(count)])
    np.testing.assert_array_equal(ranks.data, np.tile(ranks.first.sum(0), (count, 1)))
    formula = seconds("allreduce", "ring", count, cells)
    assert abs(ranks.clock.max() - formula) <= 2 * (count - 1) * (BETA + GAMMA)


def test_one_rank_sends_nothing_and_nonsense_is_refused():
    for operation, known in ALGORITHMS.items():
        for algorithm in known:
            assert totals(rounds_of(operation, 1, 100, algorithm)).messages == 0, (operation, algorithm)
    with pytest.raises(UserError, match="collective operation 'allredcue'. Did you mean 'allreduce'"):
        rounds_of("allredcue", 2, 8)
    with pytest.raises(UserError, match="algorithm of allreduce 'binomial'"):
        rounds_of("allreduce", 2, 8, "binomial")
    with pytest.raises(UserError, match="at least 1 rank"):
        rounds_of("allreduce", 0, 8)


def test_the_automatic_choice_is_that_of_mpich():
    choice = collectives.automatic
    assert [choice("allreduce", 4, n) for n in (8, 2048, 2049)] == ["recursive-doubling"] * 2 + [
        "rabenseifner"
    ]
    assert choice("broadcast", 4, 1e6) == "binomial" and choice("broadcast", 64, 1e6) == "scatter-allgather"
    assert choice("allgather", 64, 100) == "bruck" and choice("allgather", 64, 1e5) == "ring"
