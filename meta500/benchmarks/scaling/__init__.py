"""Level 3, scaling: step times of distributed schemes, measured on few ranks and predicted for many.

`job` says what is measured, `worker` measures it under mpiexec, `launching` starts it, `analysis` fits the
model and predicts, `rows` and `tables` report, `command` is ``meta500 scale``.
"""
