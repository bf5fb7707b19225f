"""Prints digests of the parameters that the deterministic schemes end with, one line per scheme and rank."""

import hashlib

import numpy as np
import problem

from meta500.distributed import registry

SCHEMES = {
    "consistent-decentralized": {},
    "consistent-parameter-server": {},
    "consistent-neighbors": {"topology": "random", "topology_seed": 4},
    "model-average": {"every": 2},
    "stale-synchronous": {"bound": 0},
}

comm = problem.communication()
compressed = problem.communication(compression="top-k:0.2")
lines = []
for scheme, options in [*SCHEMES.items(), ("consistent-decentralized", {"compressed": True})]:
    group = compressed if options.pop("compressed", False) else comm
    net = problem.network("numpy")
    distributed = registry.create(scheme, problem.optimizer("adam", net), group, **options)
    for batch in problem.batches(comm.size):
        distributed.train(problem.part(batch, comm.rank, comm.size))
    bits = np.ascontiguousarray(problem.values(net)).tobytes()
    lines.append(f"{scheme} rank {comm.rank} {hashlib.sha256(bits).hexdigest()}")
    distributed.finish()
gathered = comm.gather_objects(lines)
if gathered is not None:
    print("\n".join(line for each in gathered for line in each))
