"""Workers that take turns at one server: the root of an asynchronous parameter server.

M workers each think (compute, send) for Z seconds, then need the server for S seconds; requests wait in line.
The
system is closed: a worker has one request at most. With fixed times every worker soon finds its place in a
cycle of max(Z + S, M S) seconds; that is also the lower bound for any times (asymptotic bounds; P. J. Denning
and J. P. Buzen, "The Operational Analysis of Queueing Network Models", Computing Surveys 10(3), 1978). For
exponential times mean value analysis gives the mean exactly (M. Reiser and S. S. Lavenberg, Journal of the
ACM 27(2), 1980).
"""

from __future__ import annotations

from meta500.errors import UserError


def cycle_fixed(workers: int, think: float, service: float) -> float:
    """Seconds from one answer to a worker to the next, with fixed times.

    Args:
        workers: M, at least 1.
        think: Z, seconds that a worker spends away from the server per cycle.
        service: S, seconds of the server per request.
    """
    _check(workers, think, service)
    return max(think + service, workers * service)


def cycle_exponential(workers: int, think: float, service: float) -> float:
    """Mean seconds of a cycle with exponential service and thinking times; arguments of `cycle_fixed`."""
    _check(workers, think, service)
    queue = 0.0
    cycle = think + service
    for population in range(1, workers + 1):
        response = service * (1 + queue)
        cycle = think + response
        queue = population * response / cycle if cycle else 0.0
    return cycle


def saturation(think: float, service: float) -> float:
    """The number of workers at which the server has no pause: (Z + S) / S; infinite without service."""
    _check(1, think, service)
    return (think + service) / service if service else float("inf")


def _check(workers: int, think: float, service: float) -> None:
    if workers < 1 or not think >= 0 or not service >= 0:
        raise UserError(
            f"a queue of {workers} workers, {think} s thinking and {service} s service: at least 1 worker "
            "and no negative times"
        )
