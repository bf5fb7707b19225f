"""Networks on blocks of the image: the pass, and runs on real processes against the undivided network."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import meta500
from meta500.backends.generated.forms import Form
from meta500.backends.generated.fusion import fused
from meta500.backends.generated.messages import Message
from meta500.backends.generated.network import GeneratedNetwork
from meta500.datasets import Dataset
from meta500.distributed.blocks import assembled, even_bounds, grid_of, part_of
from meta500.distributed.spatial import decompose, localize
from meta500.errors import UserError
from meta500.graph import AllReduce, Builder, HaloExchange, MeanSquaredError, ops

CHECKS = Path(__file__).with_name("spatial_checks.py")


class Ranks:
    """As much of a CommunicationNetwork as is asked before any message."""

    rank, size, comm = 0, 2, None


def halos(model):
    return [op for op in model.graph.operations if isinstance(op, HaloExchange)]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "ranks, blocks",
    [(4, "2x2"), *(pytest.param(*case, marks=SLOW) for case in [(3, "3x1"), (2, "2x1"), (2, "1x2")])],
)
def test_networks_on_blocks_equal_the_undivided_ones(mpiexec, ranks, blocks):
    done = mpiexec(ranks, CHECKS, "networks", blocks, "numpy,torch", timeout=240)
    assert done.stdout == "good"


@pytest.mark.parametrize(
    "ranks, blocks, backend",
    [(2, "1x2", "torch"), *(pytest.param(4, "2x2", b, marks=SLOW) for b in ("numpy", "torch"))],
)
def test_training_on_blocks_equals_training_of_the_whole(mpiexec, ranks, blocks, backend):
    done = mpiexec(ranks, CHECKS, "train", blocks, backend, timeout=240)
    assert done.stdout == "good"


@pytest.mark.slow
def test_generated_code_exchanges_halos_with_threads(mpiexec):
    """And its native optimizer reduces gradients in the same step; a fault in one block ends all."""
    assert mpiexec(2, CHECKS, "generated", "2x1", 2, "small", timeout=280).stdout == "good"


@pytest.mark.slow
def test_ranks_share_samples_and_images_at_once(mpiexec):
    assert mpiexec(4, CHECKS, "both", "2x2", "torch", timeout=280).stdout == "good"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["torch", "generated"])
def test_a_rank_that_does_not_answer_ends_the_step(mpiexec, backend):
    done = mpiexec(2, CHECKS, "lost", "2x1", backend, timeout=280, returncode="failure")
    assert "rank 0 waited 3 s for a message of another block: one of the ranks has ended" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "ranks, blocks, threads", [(2, "2x1", 1), (2, "1x2", 2), (3, "3x1", 1), (4, "2x2", 2)]
)
def test_generated_networks_on_blocks_equal_the_undivided_ones(mpiexec, ranks, blocks, threads):
    names = "windows,shrinking,classifier,weighted,unet"
    assert mpiexec(ranks, CHECKS, "generated", blocks, threads, names, timeout=590).stdout == "good"


@pytest.mark.slow
def test_training_on_blocks_in_generated_code(mpiexec):
    assert mpiexec(4, CHECKS, "train", "2x2", "generated", timeout=590).stdout == "good"


@pytest.mark.parametrize("ranks, blocks", [(3, "1x3"), pytest.param(4, "2x2", marks=SLOW)])
def test_transposed_messages_are_the_adjoint(mpiexec, ranks, blocks):
    assert mpiexec(ranks, CHECKS, "adjoint", blocks, timeout=240).stdout == "good"


def test_blocks_keep_whole_cells_of_the_coarsest_level():
    model = meta500.models.unet(n=0, batch=2, size=(80, 48), depth=4)
    bounds = [localize(model, (2, 1), rank).inputs["image"][2].bounds for rank in (0, 1)]
    assert bounds == [(0, 48, 80)] * 2  # five cells of 16 rows: three and two
    local = localize(model, (2, 3), 5)
    assert local.model.inputs["image"].shape == (2, 3, 32, 16)
    assert local.model.inputs["label"].shape == (2, 32, 16)
    assert local.model.outputs["logits"].shape == (2, 3, 32, 16)
    assert local.model.parameters == model.parameters


def test_pairs_of_processes_agree_on_what_they_send():
    model = meta500.models.unet(n=0, batch=1, size=32, depth=2)
    upper, lower = (halos(localize(model, (2, 1), rank).model) for rank in (0, 1))
    assert len(upper) == len(lower) == 10
    for a, b in zip(upper, lower, strict=True):
        assert (a.tag, a.axis, a.after, a.send_after) == (b.tag, b.axis, b.send_before, b.before)
        assert a.before == a.send_before == b.after == b.send_after == 0
    assert len({op.tag for op in upper}) == len(upper)


def test_generated_layers_write_beside_the_room_for_the_halo():
    """No copies: a layer before an exchange writes its result where the exchange adds the halo."""
    model = meta500.models.unet(n=0, batch=2, size=32, depth=1)
    local = localize(model, (2, 2), 0).model
    with GeneratedNetwork(local, threads=1) as net:
        shapes = tuple((name, value.shape) for name, value in local.inputs.items())
        program = fused(net.stages(Form(("loss",), shapes, "loss", tuple(net.get_params()))))
    messages = [stage for stage in program.stages if stage.message is not None]
    forward = [s for s in messages if s.message.kind == "halo" and not s.message.transposed]
    backward = [s for s in messages if s.message.kind == "halo" and s.message.transposed]
    assert len(forward) == 2 * 6  # six convolutions, rows and columns
    assert len(backward) == 2 * 5  # the image has no gradient
    assert [s.message.tag for s in backward] == [s.message.tag for s in reversed(forward[2:])]
    copies = [s for s in program.stages if s.combine == "set" and str(s.origin).startswith("HaloExchange")]
    assert [s.write.tensor for s in copies] == ["image:halo:halo"]


def test_transposed_parts_are_those_of_the_other_direction():
    one = Message("halo", "g", before=1, after=2, send_before=3, send_after=1)
    assert one.parts(10) == ([(1, 4), (7, 8)], [(0, 1), (8, 10)])
    assert one.adjoint.parts(10) == one.parts(10)[::-1]
    assert Message("total", "g").adjoint == Message("total", "g")


def test_without_halos_only_the_loss_communicates():
    model = meta500.models.unet(n=0, batch=1, size=32, depth=2)
    local = localize(model, (2, 2), 3, halo=False).model
    assert not halos(local)
    assert sum(isinstance(op, AllReduce) for op in local.graph.operations) == 1
    convolutions = [op for op in local.graph.operations if op.op_type == "Conv" and op.kernel_shape == (3, 3)]
    assert all(op.pads == (1, 1, 1, 1) for op in convolutions)


def test_one_block_is_the_network_itself():
    model = meta500.models.unet(n=0, batch=1, size=32, depth=2)
    local = localize(model, (1, 1), 0)
    assert [op.op_type for op in local.model.graph.operations] == [
        op.op_type for op in model.graph.operations
    ]


def test_local_networks_can_be_written_and_read(tmp_path):
    local = localize(meta500.models.unet(n=0, batch=1, size=32, depth=1), (2, 1), 1).model
    local.save(tmp_path / "block.onnx")
    again = meta500.load(tmp_path / "block.onnx")
    assert [str(op) for op in again.graph.operations] == [str(op) for op in local.graph.operations]
    assert again.outputs == local.outputs


def test_a_network_of_processes_that_nobody_made_is_refused():
    local = localize(meta500.models.unet(n=0, batch=1, size=32, depth=1), (5, 1), 1).model
    with (
        meta500.network(local, backend="numpy") as net,
        pytest.raises(UserError, match=r"node 'image:halo' \(HaloExchange\): there is no grid of processes"),
    ):
        net.inference({"image": np.zeros(local.inputs["image"].shape, np.float32)})


def single(operation, *operands, shape=(2, 4, 16, 16), **fields):
    b = Builder("one")
    b.input("x", np.float32, shape)
    operands = [b.constant(o) if isinstance(o, np.ndarray) else o for o in operands]
    b.output(b.add(operation, *operands, name="node", outputs=["y"], **fields))
    return b.build()


@pytest.mark.parametrize(
    "model, reason",
    [
        (single(ops.Flatten, "x"), "flattened"),
        (single(ops.GlobalMaxPool, "x"), "maximum is over the whole image"),
        (single(ops.InstanceNormalization, "x", np.ones(4, "f"), np.ones(4, "f")), "statistics"),
        (single(ops.Softmax, "x", axis=2), "axis 2, which is cut"),
        (single(ops.Concat, ("x", "x"), axis=2), "joins along axis 2"),
        (single(ops.ReduceMax, "x"), "ReduceMax is not known"),
        (single(ops.MatMul, "x", np.ones((16, 3), "f")), "sum is over cells"),
        (single(ops.Conv, "x", np.ones((4, 4, 13, 3), "f"), pads=(6, 1, 6, 1)), "reads 6 cells beyond block"),
    ],
)  # fmt: skip
def test_what_needs_other_blocks_is_refused_by_name(model, reason):
    with pytest.raises(UserError, match=rf"node 'node' .*blocks of the image: .*{reason}"):
        localize(model, (4, 1), 0)


def test_batch_normalization_that_trains_is_refused_by_name():
    model = meta500.models.resnet18(batch=2, size=64)
    with pytest.raises(
        UserError, match=r"BatchNormalization\) cannot run on blocks .*statistics are those of"
    ):
        localize(model, (2, 1), 0)


def test_faults_of_the_blocks_are_said():
    model = meta500.models.unet(n=0, batch=1, size=32, depth=4)
    with pytest.raises(
        UserError, match=r"32 rows cannot be cut into 3 blocks: .* multiples of 16, which are 2"
    ):
        localize(model, (3, 1), 0)
    with pytest.raises(UserError, match="blocks 2x2 need 4 ranks, there are 2"):
        decompose(model, "2x2", Ranks())
    for text in ("2", "2x", "2x2x2", "axb", ""):
        with pytest.raises(UserError, match="write rows x columns"):
            grid_of(text)
    with pytest.raises(UserError, match="at least 1"):
        grid_of("0x2")
    b = Builder("numbers")
    b.output(b.add(ops.Relu, b.input("x", np.float32, (2, 8))))
    with pytest.raises(UserError, match="no image among its inputs"):
        localize(b.build(), (2, 1), 0)
    b = Builder("sequence")
    b.output(b.add(ops.Relu, b.input("x", np.float32, (2, 8, 6))))
    assert localize(b.build(), (3, 1), 0).model.inputs["x"].shape == (2, 8, 2)
    with pytest.raises(UserError, match="no columns to cut"):
        localize(b.build(), (1, 2), 0)


def test_branches_that_are_cut_at_different_places_are_refused():
    b = Builder("branches")
    x = b.input("x", np.float32, (1, 2, 15, 8))
    w = b.parameter("w", np.ones((2, 2, 3, 3), np.float32))
    small = b.add(ops.Conv, x, w, pads=(0, 1, 0, 1))
    up = b.add(ops.Conv, small, w, pads=(2, 1, 2, 1))
    b.output(b.add(ops.Add, x, up, name="join"))
    assert localize(b.build(), (3, 1), 1).model.outputs  # 15 = 15 rows, cut at the same places
    b = Builder("other")
    x = b.input("x", np.float32, (1, 2, 16, 8))
    y = b.add(ops.Conv, x, b.constant(np.ones((2, 2, 2, 1), np.float32)), strides=(2, 1))
    y = b.add(ops.ConvTranspose, y, b.constant(np.ones((2, 2, 10, 1), np.float32)))
    b.output(
        b.add(ops.Mul, y, b.add(ops.ReduceMean, x, b.constant(np.array([1, 3])), keepdims=1), name="join")
    )
    with pytest.raises(
        UserError, match=r"do not broadcast|cut at different|types do not fit|cells along|node 'join'"
    ):
        localize(b.build(), (2, 1), 1)


def test_samples_are_cut_to_the_block():
    model = meta500.models.unet(n=0, batch=2, size=(48, 32), depth=2)
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(5, 3, 48, 32)).astype("f"), rng.integers(0, 3, (5, 48, 32))
    whole = Dataset("pictures", {"image": images, "label": labels})
    parts = [localize(model, (2, 2), rank) for rank in range(4)]
    cut = [part.dataset(whole) for part in parts]
    assert all(len(one) == 5 and one.inputs["image"].flags.c_contiguous for one in cut)
    layout = parts[0].inputs["image"]
    assert np.array_equal(assembled([one.inputs["image"] for one in cut], layout, 2), images)
    assert np.array_equal(
        assembled([one.inputs["label"] for one in cut], parts[0].inputs["label"], 2), labels
    )
    batch = parts[3].cut({"image": images[:2], "label": labels[:2]})
    assert np.array_equal(batch["image"], images[:2, :, 24:, 16:])
    small = Dataset("small", {"image": images[:, :, :40], "label": labels[:, :40]})
    with pytest.raises(UserError, match="dataset 'small', input 'image': an array of shape .* 48 cells"):
        parts[0].dataset(small)


def test_every_cell_belongs_to_one_block():
    for size, count, granule in ((17, 3, 1), (64, 4, 16), (50, 3, 4)):
        bounds = even_bounds(size, count, granule, 0)
        assert bounds[0] == 0 and bounds[-1] == size and len(bounds) == count + 1
        assert all(a < b and a % granule == 0 for a, b in itertools.pairwise(bounds))
    whole = np.arange(24.0).reshape(4, 6)
    assert np.array_equal(part_of(whole, {}, (0, 0)), whole)


def test_a_mean_of_squares_over_uneven_blocks_is_weighted():
    b = Builder("mean")
    b.input("x", np.float64, (1, 1, 5, 2))
    b.input("target", np.float64, (1, 1, 5, 2))
    b.output(b.add(MeanSquaredError, "x", "target", outputs=["loss"]))
    shares = []
    for rank in range(2):
        local = localize(b.build(), (2, 1), rank).model
        assert local.inputs["target"].shape == local.inputs["x"].shape
        shares.append(float(local.graph.initializers["loss:share"]))
    assert shares == [0.6, 0.4]


def test_a_reduction_over_no_axis_is_no_sum_over_blocks():
    """With noop_with_empty_axes it hands its input on, cut as it was."""
    b = Builder("none")
    b.input("x", np.float32, (2, 4, 16, 16))
    y = b.add(ops.ReduceSum, "x", name="node", noop_with_empty_axes=1)
    b.output(b.add(ops.Relu, y, outputs=["y"]))
    local = localize(b.build(), (2, 1), 1).model
    assert not any(isinstance(op, AllReduce) for op in local.graph.operations)
    assert local.outputs["y"].shape == (2, 4, 8, 16)


def test_one_rank_that_refuses_its_block_ends_all(mpiexec):
    program = """
import meta500
from meta500.distributed import CommunicationNetwork, decompose, spatial
from meta500.errors import UserError
communication = CommunicationNetwork()
real = spatial.localize
def refusing(model, grid, rank, **options):
    if rank == 1:
        raise UserError("node 'n': does not fit")
    return real(model, grid, rank, **options)
spatial.localize = refusing
try:
    decompose(meta500.models.unet(n=0, batch=1, size=32, depth=1), "2x1", communication)
except UserError as error:
    print(error, flush=True)
"""
    assert mpiexec(2, program).stdout.count("node 'n': does not fit") == 2


@pytest.mark.parametrize("scheme", ["consistent-neighbors", "model-average", "stale-synchronous"])
def test_schemes_that_step_with_gradients_of_blocks_are_refused(scheme):
    from meta500.benchmarks.ranks import decomposed
    from meta500.benchmarks.training import Setup

    with pytest.raises(UserError, match=f"--scheme {scheme} does not go with --spatial"):
        decomposed(Setup(scheme=scheme, spatial="2x1"), None, Ranks())
