"""What the study of the compiler measures, and what it refuses."""

import json
import os

import pytest

from meta500.benchmarks.studies.compiler import Settings, plan
from meta500.benchmarks.studies.compiler.products import sizes
from meta500.benchmarks.studies.compiler.settings import MODES, NETWORKS, PARTS
from meta500.errors import UserError
from meta500.models import create

OWN_PARTS = tuple(part for part in PARTS if part != "layers")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(parts=("product",)), r"--part: .*'product'.*products"),
        (Settings(parts=("blocks", "blocks")), "--part: 'blocks' is given twice"),
        (Settings(networks=("resnet18",)), r"--network: .*'resnet18'.*resnet50"),
        (Settings(modes=("eager",)), r"--mode: .*'eager'.*default"),
        (Settings(device="tpu"), "--device: 'tpu' is unknown; choose one of: cpu, cuda, cuda:N"),
        (Settings(device="cuda:x"), "--device: 'cuda:x' is unknown"),
        (Settings(threads=0), "--threads: 0 must be 1 to"),
        (Settings(threads=100_000), "--threads: 100000 must be 1 to .* processors of this process"),
        (Settings(seed=-1), "--seed: -1 is negative"),
    ],
)
def test_refuses(settings: Settings, message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings.check()


def test_cuda_needs_a_device() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        Settings(device="cuda").check()
        Settings(device="cuda:0").check()
        with pytest.raises(UserError, match="--device: 'cuda:99' is not there"):
            Settings(device="cuda:99").check()
    else:
        for device in ("cuda", "cuda:1"):
            with pytest.raises(UserError, match="--device: PyTorch finds no CUDA device"):
                Settings(device=device).check()


def test_a_numbered_device_is_measured_like_the_first() -> None:
    first, second = Settings(device="cuda"), Settings(device="cuda:1")
    assert first.network_options("alexnet") == second.network_options("alexnet")
    assert sizes(first, "cuda") == sizes(second, "cuda:1") != sizes(first, "cpu")


def test_a_study_goes_on_only_with_the_same_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    assert Settings().as_json()["threads"] == Settings().used_threads == cores
    assert Settings(threads=1).as_json()["threads"] == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(cores + 1))
    assert Settings().as_json()["threads"] == cores + 1


def test_the_order_of_options_is_no_other_study() -> None:
    given = {
        "networks": ("resnet50", "alexnet"),
        "parts": ("blocks", "products"),
        "modes": ("max-autotune", "default"),
    }
    one = Settings(quick=True, **given)
    other = Settings(quick=True, **{name: values[::-1] for name, values in given.items()})
    assert json.dumps(one.as_json()) == json.dumps(other.as_json())
    assert [p.key for p in plan(one).pieces] == [p.key for p in plan(other).pieces]
    assert one.as_json()["networks"] == ["alexnet", "resnet50"]


def test_all_is_chosen_where_nothing_is_given() -> None:
    everything = Settings()
    assert (everything.chosen_parts, everything.chosen_networks) == (PARTS, NETWORKS)
    assert everything.chosen_modes == MODES
    quick = Settings(quick=True)
    assert quick.chosen_modes == ("default", "reduce-overhead")
    assert set(quick.chosen_networks) < set(NETWORKS)


def test_given_order_does_not_matter() -> None:
    settings = Settings(modes=("max-autotune", "default"), parts=("blocks", "products"))
    assert settings.chosen_modes == ("default", "max-autotune")
    assert settings.chosen_parts == ("products", "blocks")


@pytest.mark.parametrize("name", ["squeezenet1_1", "googlenet"])
def test_networks_have_images_and_logits_alone(name: str) -> None:
    model = create(name, **Settings(quick=True).network_options(name))
    assert list(model.inputs) == ["image"]
    assert list(model.outputs) == ["logits"]


@pytest.mark.parametrize("quick", [True, False])
def test_keys_of_the_pieces_are_unique_and_stable(quick: bool) -> None:
    settings = Settings(quick=quick, parts=OWN_PARTS)
    keys = [piece.key for piece in plan(settings).pieces]
    assert len(set(keys)) == len(keys)
    assert keys == [piece.key for piece in plan(settings).pieces]


def test_a_part_alone_has_only_its_pieces() -> None:
    keys = [piece.key for piece in plan(Settings(quick=True, parts=("blocks",))).pieces]
    assert keys == ["block-3-1", "block-3-2", "block-3-4"]


def test_plan_refuses_wrong_settings() -> None:
    with pytest.raises(UserError, match="--part"):
        plan(Settings(parts=("everything",)))
