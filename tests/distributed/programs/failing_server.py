"""The server's update fails: the root tells why, the others that it did; run with 2 ranks."""

import problem

import meta500
from meta500.distributed import registry
from meta500.optimizers import SGD

comm = problem.communication()


def rate(step):
    return 0.1 if step < 2 else float("nan")


net = problem.network()
distributed = registry.create("inconsistent-parameter-server", SGD(net, rate), comm)
batch = problem.part(problem.batches(2)[0], comm.rank, 2)
if comm.rank == 1:
    comm.comm.recv(source=0)
else:
    distributed.train(batch)
    comm.comm.send(None, dest=1)
    comm.comm.recv(source=1)
message = "nothing failed"
try:
    for _ in range(2):
        distributed.train(batch)
except meta500.UserError as error:
    message = str(error)
if comm.rank == 1:
    comm.comm.send(None, dest=0)
print(f"rank {comm.rank}: {message}\n", end="", flush=True)
