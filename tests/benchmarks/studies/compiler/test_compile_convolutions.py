"""Convolutions: those of ResNet-50, single ones, blocks, and inside of the network."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from meta500.benchmarks.studies.compiler import Settings, convolutions, profiled
from meta500.benchmarks.studies.compiler.convolutions import (
    Convolution,
    ablated,
    block,
    convolutions_of,
    measure_ablation,
    measure_alone,
    measure_block,
    resnet,
)
from meta500.benchmarks.studies.compiler.profiled import measure_inside, recorded_convolutions
from meta500.benchmarks.studies.select import select, unique
from meta500.errors import UserError
from meta500.graph import Builder, ops
from meta500.metrics.rows import Row
from meta500.models import create

torch = pytest.importorskip("torch")

QUICK = Settings(quick=True, threads=1)


@pytest.fixture(scope="module", autouse=True)
def one_resnet() -> Iterator[None]:
    """ResNet-50 is made once for all tests: that takes most of their time."""
    cached = functools.lru_cache(resnet)
    with pytest.MonkeyPatch.context() as patch:
        for module in (convolutions, profiled):
            patch.setattr(module, "resnet", cached)
        yield


def unchanged(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """A compiler that changes nothing."""
    return function


def bottlenecks(batch: int, size: int, stages: int = 4) -> dict[Convolution, int]:
    """The convolutions of ResNet-50 from its description: He et al. 2015, table 1, with the stride of a
    stage in
    its first 3x3 convolution."""
    found: dict[Convolution, int] = {}

    def add(side: int, channels: int, out: int, kernel: int, stride: int) -> int:
        kind = Convolution(
            (batch, channels, side, side),
            (out, channels, kernel, kernel),
            (stride, stride),
            (kernel // 2, kernel // 2),
            bias=False,
        )
        found[kind] = found.get(kind, 0) + 1
        return -(-side // stride)

    side = -(-add(size, 3, 64, 7, 2) // 2)
    channels = 64
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))[:stages]:
        for index in range(blocks):
            stride = first if index == 0 else 1
            add(side, channels, width, 1, 1)
            if index == 0:
                add(side, channels, 4 * width, 1, stride)
            side = add(side, width, width, 3, stride)
            add(side, width, 4 * width, 1, 1)
            channels = 4 * width
    return found


def test_the_convolutions_of_resnet50() -> None:
    model = create("resnet50", batch=2, size=224, loss=False)
    found = convolutions_of(model)
    assert found == bottlenecks(2, 224)
    assert (len(found), sum(found.values())) == (23, 53)


def test_quick_ends_after_the_first_stage() -> None:
    model, output = resnet(QUICK)
    found = convolutions_of(model)
    assert found == bottlenecks(1, 64, stages=1)
    assert (len(found), sum(found.values())) == (5, 11)
    assert list(model.outputs) == [output]


def test_different_padding_on_two_sides_is_refused() -> None:
    b = Builder("net")
    x = b.input("x", np.float32, (1, 2, 8, 8))
    weight = b.parameter("w", np.zeros((2, 2, 3, 3), np.float32))
    b.output(b.add(ops.Conv, x, weight, pads=(0, 0, 1, 1)), "y")
    with pytest.raises(UserError, match="not the same on both sides"):
        convolutions_of(b.build())


def test_labels_tell_all_kinds_apart() -> None:
    kinds = list(bottlenecks(4, 224))
    assert len({kind.label for kind in kinds}) == len(kinds)
    grouped = Convolution((1, 8, 9, 9), (8, 1, 3, 3), (2, 2), (1, 1), (2, 2), 8)
    assert grouped.label == "3x3, 8 to 8 on 9x9, stride 2, padding 1, dilation 2, groups 8"
    assert grouped.terms == 10


def test_the_ablation_is_that_of_the_thesis() -> None:
    kinds = [kind for kernel in (1, 3, 5) for kind in ablated(Settings(), kernel)]
    assert len(set(kinds)) == 18
    assert {kind.weight[2] for kind in kinds} == {1, 3, 5}
    assert {kind.strides for kind in kinds} == {(1, 1), (2, 2)}
    assert {kind.padding for kind in kinds} == {(1, 1), (2, 2), (3, 3)}


def test_a_block_is_one_convolution_after_the_other() -> None:
    kind = Convolution((2, 3, 6, 6), (3, 3, 3, 3), padding=(1, 1))
    with torch.no_grad():
        work = block([kind, kind], QUICK)
        (image,) = work.inputs
        result = work.function(image)
        layers = work.function.__closure__[0].cell_contents
        first, second = layers
        assert not torch.equal(first.weight, second.weight)
        np.testing.assert_array_equal(result.numpy(), second(first(image)).numpy())
        np.testing.assert_allclose(result.numpy(), work.exact, rtol=1e-4, atol=1e-5)
        assert work.exact is not None and work.exact.dtype == np.float64


def test_inputs_and_weights_follow_the_seed_and_leave_torchs_state() -> None:
    kind = Convolution((1, 2, 4, 4), (2, 2, 1, 1))
    state = torch.get_rng_state()
    with torch.no_grad():
        same = [block([kind], Settings(seed=3)).exact for _ in range(2)]
        other = block([kind], Settings(seed=4)).exact
    assert torch.equal(state, torch.get_rng_state())
    np.testing.assert_array_equal(same[0], same[1])
    assert not np.array_equal(same[0], other)


def test_rows_of_single_convolutions_and_blocks() -> None:
    rows: list[Row] = []
    measure_ablation(QUICK, 3, rows.append, compile=unchanged)
    measure_block(QUICK, 3, 2, rows.append, compile=unchanged)
    ratios = select(rows, quantity="ratio")
    assert [(row.phase, row.node) for row in ratios] == [
        ("single convolution", "3x3, 32 to 32 on 28x28, stride 1, padding 1"),
        ("block of convolutions", "2 of 3x3"),
    ]
    assert {row.verdict for row in select(rows, quantity="time")} == {"ok"}


def test_every_kind_of_resnet_is_measured_alone() -> None:
    rows: list[Row] = []
    measure_alone(QUICK, rows.append, compile=unchanged)
    ratios = select(rows, quantity="ratio")
    assert {row.node for row in ratios} == {kind.label for kind in bottlenecks(1, 64, stages=1)}
    assert {(row.model, row.phase, row.mode) for row in ratios} == {
        ("resnet50", "convolution alone", "default")
    }


def test_the_profiler_finds_every_convolution_with_its_attributes() -> None:
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.Conv2d(8, 8, 3, stride=2, padding=(2, 1), groups=4),
        torch.nn.Conv2d(8, 8, 1, bias=False),
        torch.nn.Conv2d(8, 8, 1),
        torch.nn.Conv2d(8, 8, 3, dilation=2, padding=2),
        torch.nn.ConvTranspose2d(8, 4, 2, stride=2),
    ).eval()
    image = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        found = recorded_convolutions(lambda: layers(image), "cpu")
    assert {kind: len(seconds) for kind, seconds in found.items()} == {
        Convolution((2, 3, 12, 12), (8, 3, 3, 3), padding=(1, 1)): 1,
        Convolution((2, 8, 12, 12), (8, 2, 3, 3), (2, 2), (2, 1), groups=4): 1,
        Convolution((2, 8, 7, 6), (8, 8, 1, 1)): 2,
        Convolution((2, 8, 7, 6), (8, 8, 3, 3), padding=(2, 2), dilations=(2, 2)): 1,
    }
    assert all(second > 0 for seconds in found.values() for second in seconds)


def test_inside_of_resnet_every_kind_is_matched() -> None:
    rows: list[Row] = []
    measure_inside(QUICK, rows.append, compile=unchanged)
    kinds = {kind.label: count for kind, count in bottlenecks(1, 64, stages=1).items()}
    times, ratios = select(rows, quantity="time"), select(rows, quantity="ratio")
    assert {(row.node, row.mode) for row in times} == {(k, m) for k in kinds for m in ("eager", "default")}
    assert {row.node for row in ratios} == set(kinds)
    assert {row.verdict for row in times} == {"ok"}
    assert all(row.note == f"mean of {kinds[row.node]} in the network" for row in times)
    assert {len(row.samples) for row in rows} == {QUICK.protocol.min_repeats}


def test_what_cannot_be_matched_is_said_and_not_guessed() -> None:
    def without_1x1_convolutions(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
        plain = torch.nn.functional.conv2d

        def products(image: Any, weight: Any, *rest: Any, **options: Any) -> Any:
            if weight.shape[2:] == (1, 1):
                return torch.einsum("bchw,oc->bohw", image, weight[:, :, 0, 0])
            return plain(image, weight, *rest, **options)

        def call(image: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch.nn.functional, "conv2d", products)
                return function(image)

        return call

    rows: list[Row] = []
    measure_inside(QUICK, rows.append, compile=without_1x1_convolutions)
    refused = select(rows, verdict="unsupported")
    assert {row.node.split(",")[0] for row in refused} == {"1x1"}
    assert {row.mode for row in refused} == {"default"}
    assert "the profiler shows 0 of 4 convolutions of this kind" in {
        row.note.split(",")[0] for row in refused
    }
    assert {row.node.split(",")[0] for row in select(rows, quantity="ratio")} == {"3x3", "7x7"}


def test_a_failing_compiler_leaves_one_row() -> None:
    def failing(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
        raise RuntimeError("no compiler")

    rows: list[Row] = []
    measure_inside(QUICK, rows.append, compile=failing)
    (row,) = rows
    assert (row.verdict, row.note) == ("failed", "RuntimeError: no compiler")


@pytest.mark.slow
def test_inside_of_resnet_with_the_real_compiler() -> None:
    rows: list[Row] = []
    measure_inside(QUICK, rows.append)
    assert len(select(rows, quantity="ratio")) == 5
    assert not select(rows, verdict={"failed", "wrong", "unsupported"})
    assert unique(rows, "protocol") == ["profiler, interleaved"]
