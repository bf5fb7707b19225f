"""Training on several ranks: what a setup becomes there."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meta500.errors import UserError, choose

if TYPE_CHECKING:
    from meta500.benchmarks.training import Setup

DEFAULT_SCHEME = "consistent-decentralized"
# Native optimizers that bring their own exchange, by backend.
NATIVE_SCHEMES = {"torch": "ddp", "generated": "in-step"}
# Further schemes that take native optimizers of a backend.
OTHER_NATIVE = {"torch": (DEFAULT_SCHEME,)}
IN_STEP = "in-step"
# Schemes in which every rank makes its step with the mean gradient of all.
EXACT_ON_BLOCKS = (DEFAULT_SCHEME, "consistent-parameter-server", IN_STEP)
TRACE, TIMELINE_PLOT = "timeline.json", "timeline.png"


def scheme_of(setup: Setup) -> str:
    """The scheme that a setup asks for, or the usual one for its optimizer.

    "in-step" is the exchange inside of the generated backend's native steps.

    Raises:
        UserError: an unknown scheme, one that does not go with the optimizer, or options without a scheme.
    """
    from meta500.distributed import registry

    usual = DEFAULT_SCHEME
    if setup.native:
        native = NATIVE_SCHEMES.get(setup.backend)
        if native is None:
            raise UserError(
                f"--native: the {setup.backend} backend's own optimizers do not train on several ranks; "
                "leave "
                f"--native out, or use the backend {' or '.join(sorted(NATIVE_SCHEMES))}"
            )
        usual = native
    known = [*registry.names(), IN_STEP]
    scheme = usual if setup.scheme is None else choose("distributed scheme", setup.scheme, known)
    if setup.native and scheme not in (usual, *OTHER_NATIVE.get(setup.backend, ())):
        raise UserError(
            f"--scheme {scheme} wraps reference optimizers: leave --native out, or use --scheme {usual}"
        )
    if not setup.native and scheme in NATIVE_SCHEMES.values():
        raise UserError(f"--scheme {scheme} is an exchange of native optimizers: add --native")
    if scheme == IN_STEP:
        if setup.scheme_options:
            raise UserError(f"--scheme-option: the scheme {IN_STEP} has no options")
        if setup.compression is not None:
            raise UserError(f"--compression: the scheme {IN_STEP} sends whole gradients")
    else:
        for option in setup.scheme_options:
            choose(f"option of scheme '{scheme}'", option, registry.options(scheme))
    return scheme


def communication_network(setup: Setup, timeline: bool) -> Any:
    """The communication of all ranks (collective; initialises MPI)."""
    from meta500.distributed.communication import CommunicationNetwork

    communication = CommunicationNetwork(compression=setup.compression)
    if timeline:
        from meta500.distributed.timeline import Timeline

        communication.timeline = Timeline(communication.rank)
    return communication


def backend_options(setup: Setup, communication: Any) -> dict[str, Any]:
    """Options of this rank's network: its own stream of random numbers, its share of the processors."""
    options = {"seed": setup.seed + communication.rank, "threads": threads_of_rank(), **setup.backend_options}
    if setup.native and scheme_of(setup) == IN_STEP:
        options["communicator"] = communication.comm
    return options


def threads_of_rank() -> int:
    """The processors that this process may use, divided by the ranks that share them."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    available = len(os.sched_getaffinity(0))
    if given.isdecimal() and int(given) > 0:
        return min(int(given), os.cpu_count() or 1)
    local = 1
    for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"):
        text = os.environ.get(name, "")
        if text.isdecimal():
            local = max(local, int(text))
            break
    pinned = available < (os.cpu_count() or 1)
    return available if pinned else max(1, available // local)


def distributed_optimizer(setup: Setup, optimizer: Any, communication: Any) -> Any:
    """The scheme of a setup around its optimizer (collective)."""
    from meta500.distributed import registry

    scheme = scheme_of(setup)
    if scheme == IN_STEP:
        return optimizer
    return registry.create(scheme, optimizer, communication, **setup.scheme_options)


def decomposed(setup: Setup, model: Any, communication: Any) -> Any:
    """The part of the network and data that a rank has in a spatial decomposition; None without one."""
    if setup.spatial is None:
        return None
    from meta500.distributed.spatial import decompose

    if setup.native and scheme_of(setup) != IN_STEP:
        raise UserError(
            "--spatial goes with reference optimizers, and with --native on the generated backend only"
        )
    scheme = scheme_of(setup)
    if scheme not in EXACT_ON_BLOCKS:
        raise UserError(
            f"--scheme {scheme} does not go with --spatial: the gradient of a block counts only in the mean "
            f"over all ranks; use one of {', '.join(EXACT_ON_BLOCKS)}"
        )
    if setup.scheme_options.get("loss_reduction", "mean") != "mean":
        raise UserError("--scheme-option loss_reduction: with --spatial it has to be mean")
    return decompose(model, setup.spatial, communication, halo=setup.halo)


def write_timeline(communication: Any, folder: Any) -> None:
    """Gather the timelines of all ranks and write them, with a plot, into the root's folder (collective)."""
    from meta500.distributed.timeline import write_chrome_trace

    events = communication.timeline.gather(communication)
    if events and folder is not None:
        from meta500.metrics.plots.timeline import timeline_plot

        trace = write_chrome_trace(events, Path(folder.path) / TRACE)
        timeline_plot(trace, folder.plot_path(TIMELINE_PLOT))


@contextmanager
def run_folder(communication: Any, create: Any) -> Any:
    """The run folder, made and held open by the root; pairs of folder (None elsewhere) and its path.

    Raises:
        UserError: on all ranks, if it cannot be made.
    """
    from meta500.distributed import faults
    from meta500.distributed.agreement import Agreement, at_root

    held: list[Any] = []

    def make() -> str:
        held.append(create())
        return str(held[0].path.resolve())

    path = Path(at_root(communication, make))
    faults.report_folder(path)
    Agreement.of(communication).notice = path / faults.NOTICE
    if held:
        with held[0] as folder:
            yield folder, path
    else:
        yield None, path
