"""Time to parse the ResNet-50 file (98 MiB) against onnx.load plus onnx's checker, interleaved.

python benchmarks/parsing.py
"""

import tempfile
from pathlib import Path

import onnx

import meta500
from meta500.metrics import interleave, ratio_interval


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resnet50.onnx"
        meta500.models.resnet50(batch=1, size=224).save(path)

        def load_and_check():
            onnx.checker.check_model(onnx.load(path))

        timings = interleave(
            {"meta500.load": lambda: meta500.load(path), "onnx.load and checker": load_and_check},
            min_repeats=15,
            min_seconds=5.0,
        )
        megabytes = path.stat().st_size / 2**20
    ours, theirs = timings.values()
    ratio = ratio_interval(ours.samples, theirs.samples)
    print(f"file: {megabytes:.1f} MiB")
    for name, timing in timings.items():
        print(f"{name:24} {1e3 * timing.median:7.1f} ms (median of {len(timing.samples)})")
    print(f"ratio {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]")


if __name__ == "__main__":
    main()
