"""Rows of all kinds that reports draw, and names that try to break out of a page."""

import json

import numpy as np

from meta500.metrics.plots.roofline import BANDWIDTH, PEAK, PHASE
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder

HOSTILE = (
    '<img src=x onerror="window.hacked=1">',
    "</script><script>window.hacked=2</script>",
    "<!-- <script> \u2028 --> $\\frac{1}$ & 100% #1 {{ 7 * 7 }} %{x}",
    '"><svg onload=window.hacked=3>',
    "<a href='javascript:window.hacked=4'>x</a>",
    "_" + "long name " * 60,
)


def timed(value, **fields):
    """A row of a time with seven samples around the value."""
    samples = tuple(value * f for f in (0.9, 0.95, 0.97, 1.0, 1.02, 1.05, 1.4))
    given = {"quantity": "time", "unit": "s", "phase": "forward", "samples": samples, "verdict": "ok"}
    given |= {"value": value, "low": samples[0], "high": samples[-1], "confidence": 0.98}
    return Row(**given | fields)


def measured_rows():
    """Layers, networks, ratios, errors, a roofline and scaling."""
    rows = []
    for backend, factor in (("torch", 1.0), ("numpy", 4.0)):
        for name, seconds in (("Conv", 3e-3), ("Relu", 1e-4)):
            one = {"level": 0, "model": name, "operator": name, "backend": backend, "dtype": "float32"}
            rows.append(timed(factor * seconds, **one))
            rows.append(Row(**one, phase="forward", quantity="flop_rate", unit="FLOP/s", value=1e9 / factor))
            rows.append(Row(**one, phase="forward", quantity="byte_rate", unit="B/s", value=1e9 / factor))
            error = {"phase": "conformance", "quantity": "max_relative", "unit": "1", "value": 2e-7 * factor}
            rows.append(Row(**one | error, verdict="ok" if factor == 1 else "wrong"))
        rows.append(timed(factor * 0.1, level=1, model="unet-0", phase="inference", backend=backend))
    rows.append(Row(level=0, operator="Foo", phase="forward", quantity="time", unit="s", value=None,
                    backend="numpy", verdict="unsupported", note="no rule"))  # fmt: skip
    rows.append(Row(level=1, model="unet-0", phase="inference", quantity="ratio", unit="1", value=4.0, low=3.8,
                    high=4.3, confidence=0.95, backend="numpy", baseline="torch"))  # fmt: skip
    for quantity, unit, value in ((PEAK, "FLOP/s", 2e9), (BANDWIDTH, "B/s", 1e10)):
        rows.append(Row(level=0, phase=PHASE, dtype="float32", quantity=quantity, unit=unit, value=value))
    for ranks in (1, 2, 4):
        rows.append(timed(0.1 * (1 + 0.1 * ranks), level=3, model="mlp", operator="dsgd", ranks=ranks,
                          quantity="step_time", phase="training_step", protocol="weak", backend="torch"))  # fmt: skip
    return rows


def training_rows(steps=60, **fields):
    """Loss of every step, and accuracy after two epochs."""
    given = {"level": 2, "model": "mlp", "dataset": "digits", "optimizer": "sgd", "backend": "torch"} | fields
    count = np.arange(1, steps + 1)
    chunks = (("samples_seen", "samples", 64.0 * count), ("training_time", "s", 0.01 * count),
              ("loss", "1", np.exp(-count / steps) + 0.01 * np.cos(count)))  # fmt: skip
    place = {"step": steps, "seconds": 0.01 * steps}
    rows = [
        Row(**given | place, phase="training_step", quantity=name, unit=unit, samples=tuple(v.tolist()),
            value=float(np.median(v)), epoch=1) for name, unit, v in chunks
    ]  # fmt: skip
    for epoch in (0, 1):
        place = {"step": (epoch + 1) * steps // 2, "epoch": epoch, "seconds": 0.005 * steps * (epoch + 1)}
        for phase, name, unit, value in (("training_set", "samples_seen", "samples", 64.0 * place["step"]),
                                         ("test_set", "accuracy", "1", 0.5 + 0.3 * epoch)):  # fmt: skip
            rows.append(Row(**given | place, phase=phase, quantity=name, unit=unit, value=value))
    for name, value in (("train_time", 0.6), ("test_time", 0.1), ("data_time", 0.0)):
        rows.append(Row(**given, phase="run", quantity=name, unit="s", value=value))
    return rows


def hostile_rows():
    """Every field of words holds one of the names."""
    rows = []
    for place, name in enumerate(HOSTILE):
        other = HOSTILE[(place + 1) % len(HOSTILE)]
        words = {"model": name, "operator": name, "node": name, "shape": other, "mode": name, "note": name}
        rows.append(timed(1e-3 * (place + 1), level=0, **words, backend=other))
        rows.append(timed(1e-3, level=1, model=name, phase=name, unit=name, backend=other))
        rows.append(Row(level=0, operator=name, quantity="ratio", unit="1", value=2.0, low=1.5, high=2.5,
                        confidence=0.95, phase=other, backend=name, baseline=other))  # fmt: skip
        rows.append(Row(level=0, operator=name, phase="conformance", quantity="max_relative", unit="1",
                        dtype="float32", backend=other, value=1e-6, verdict="wrong", note=name))  # fmt: skip
        rows += training_rows(model=name, optimizer=other, dataset=name, backend=name)
        rows += scaling_rows(model=name, backend=other, schemes=(name, other))
        for size in (64, 4096):
            rows.append(timed(1e-6 * size, level=3, node=name, operator=other, phase="message", shape=f"{size} B",
                              backend=name))  # fmt: skip
        given = {"level": 2, "phase": "sampling", "dataset": name, "mode": other, "note": name}
        rows.append(timed(1e-3, **given, quantity="latency"))
    for name in HOSTILE:
        for quantity in ("label_count", "label_expected"):
            rows.append(Row(level=2, phase="sampling", dataset=HOSTILE[2], note=HOSTILE[2], node=name,
                            quantity=quantity, unit="samples", value=5.0))  # fmt: skip
    return rows


def scaling_rows(factor=1.0, schemes=("dsgd", "neighbour"), **fields):
    """Measured and predicted steps of two schemes; four ranks share two cores, 16 are below the threshold."""
    study = {"level": 3, "model": "mlp", "backend": "torch", "threads": 1} | fields
    rows = []
    for place, scheme in enumerate(schemes):
        given = study | {"operator": scheme, "protocol": "weak"}
        for ranks in (1, 2, 4, 16, 32):
            seconds, more = factor * (0.1 + 0.02 * place) * (1 + 0.1 * ranks), given | {"ranks": ranks}
            predicted = {"phase": "model", "unit": "s", "value": 1.05 * seconds}
            rows.append(Row(**more, **predicted, quantity="predicted_step_time"))
            if ranks <= 4:
                rows.append(timed(seconds, **more, quantity="step_time", phase="training_step"))
                rows.append(Row(**more, **predicted, quantity="checked_step_time"))
        rows.append(Row(**given, phase="limit", quantity="ranks_inefficient", unit="1", value=16))
    rows.append(Row(**study, phase="limit", quantity="efficiency_threshold", unit="1", value=0.5))
    rows.append(Row(**study, phase="model", quantity="cores", unit="1", value=2))
    return rows


def make_run(path, rows, cpu="Test CPU"):
    """A run folder with these rows; returns the path."""
    environment = {"cpu": {"model": cpu, "physical_cores": 2}, "versions": {"meta500": "0", "torch": "2"}}
    with RunFolder.create(path, environment=environment, command=["meta500", "bench", cpu]) as folder:
        folder.extend(rows)
    return path


def data_of(text):
    """What the scripts of a page read."""
    begin = text.index('id="page-data">') + len('id="page-data">')
    return json.loads(text[begin : text.index("</script>", begin)])
