"""How long a training step takes on P ranks: messages (alpha, beta), reductions (gamma), computation,
sharing.

`collectives` says which messages the algorithms of MPI libraries send, `machine` what a message costs,
`schemes` which operations a distributed optimizer performs per step, `computation` how long a pass takes for
a local batch, and `prediction` puts them together. `microbenchmark` measures the parameters under ``mpiexec``
and `calibration` fits them. Nothing here needs MPI except the micro-benchmark.
"""
