"""N ranks with b samples each against one rank with N b, for every consistent scheme and optimizer."""

import itertools
import sys

import numpy as np
import problem

from meta500.distributed import registry

TOLERANCE = 1e-12

comm = problem.communication()
rank, ranks = comm.rank, comm.size
backends = sys.argv[1].split(",")
uneven = "even" not in sys.argv[2:]
schemes = {
    "consistent-decentralized": {},
    "consistent-parameter-server": {},
    "stale-synchronous": {"bound": 0},
    "model-average": {},
}
# Those that average changes instead of gradients equal the global batch where the rule is linear and has no
# memory; the whole ladder for the others.
exact_for = {
    "consistent-decentralized": ("sgd", "momentum", "adam", "accelegrad"),
    "consistent-parameter-server": ("sgd", "momentum", "adam", "accelegrad"),
    "stale-synchronous": ("sgd",),
    "model-average": ("sgd",),
}
identical = {"consistent-decentralized", "consistent-parameter-server", "stale-synchronous", "model-average"}

checked = 0
for backend, scheme in itertools.product(backends, schemes):
    for name in exact_for[scheme]:
        # Other initial values on every rank: making the scheme has to broadcast those of rank 0.
        net, serial = problem.network(backend, seed=1 + rank), problem.network(backend, seed=1)
        distributed = registry.create(scheme, problem.optimizer(name, net), comm, **schemes[scheme])
        reference = problem.optimizer(name, serial)
        assert np.array_equal(problem.values(net), problem.values(serial)), "not broadcast"
        before = problem.values(net)

        for batch in problem.batches(ranks, uneven):
            distributed.train(problem.part(batch, rank, ranks))
            reference.train(batch)
            if scheme in identical:
                assert problem.same_everywhere(comm, problem.values(net)), f"{scheme} {name}: replicas differ"
            error = np.abs(problem.values(net) - problem.values(serial)).max()
            assert error <= TOLERANCE, f"{backend} {scheme} {name} rank {rank}: {error}"
        assert np.abs(problem.values(net) - before).max() > 1e-3, "nothing was learnt"
        assert distributed.step_count == reference.step_count == 5
        distributed.finish()
        checked += 1
if comm.is_root:
    print("checked", checked)
