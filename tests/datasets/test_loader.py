"""Loaders: the same batches whoever makes them, bounded work ahead, errors as they are, nothing left behind."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from meta500.datasets import (
    BucketSampler,
    ChoiceSampler,
    Dataset,
    LazyDataset,
    OrderedSampler,
    ShuffleSampler,
    workers,
)
from meta500.datasets.loader import Loader
from meta500.distributed.samplers import DealtSampler, DistributedSampler
from meta500.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("flip", "crop:2", "rotate:20", "contrast")


@dataclass(frozen=True)
class Read:
    """Pictures from an array; with ``broken``, one that cannot be read, and with ``deadly`` one that kills."""

    pictures: np.ndarray
    broken: int = -1
    error: type = UserError
    deadly: int = -1

    def __call__(self, index):
        if index == self.broken:
            raise self.error(f"picture {index} is broken")
        if index == self.deadly:
            os._exit(9)
        return {"image": self.pictures[index], "label": np.array(index % 10)}


def prepared(sample, index):
    return {"image": sample["image"].astype(np.float32) / np.float32(255), "label": sample["label"]}


def lazy(samples=30, shape=(3, 8, 8), **options):
    pictures = np.random.default_rng(0).integers(0, 256, (samples, *shape), dtype=np.uint8)
    return LazyDataset(
        "pictures",
        samples,
        Read(pictures, **options),
        {"image": shape, "label": ()},
        {"image": np.float32, "label": np.int64},
        prepare=prepared,
    )


def same(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.keys() == b.keys()
        for name, array in a.items():
            assert array.dtype == b[name].dtype and array.flags.writeable and array.flags.c_contiguous
            np.testing.assert_array_equal(array, b[name])


def by_hand(sampler, epoch, steps=(), seed=0):
    from meta500.datasets.augmentations import Augment, parsed

    change = Augment(parsed(steps), seed, epoch) if steps else None
    return [
        sampler.dataset.batch(indices, change) if len(indices) else sampler.dataset.empty_batch()
        for indices in sampler.batches(epoch)
    ]


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_batches_are_the_same_bits_whoever_makes_them(kind):
    sampler = ShuffleSampler(lazy(), 4, seed=5)
    expected = [by_hand(sampler, epoch, STEPS, 5) for epoch in (0, 1)]
    assert not np.array_equal(expected[0][0]["image"], expected[1][0]["image"])
    same(list(Loader(sampler, augment=STEPS).epoch(1)), expected[1])
    for count, prefetch in ((1, 1), (3, 2)):
        with Loader(sampler, workers=count, kind=kind, prefetch=prefetch, augment=STEPS) as loader:
            same(list(loader.epoch(0)), expected[0])
            same(list(loader.epoch(1)), expected[1])
            same(list(loader.epoch(1, first=5)), expected[1][5:])
            assert list(loader.epoch(1, first=50)) == []


def test_batches_do_not_depend_on_how_they_travel(monkeypatch):
    sampler = ShuffleSampler(lazy(), 4, seed=5)
    expected = by_hand(sampler, 0)
    for limit in (0, 1 << 60):
        monkeypatch.setattr(workers, "SHARED_FROM", limit)
        with Loader(sampler, workers=1, kind="process") as loader:
            # All batches are kept, and each belongs to the caller alone.
            found = list(loader.epoch(0))
            same(found, expected)
            found[0]["image"][...] = -1
            same(list(loader.epoch(0)), expected)
            # Two walks at once: more batches than there are places in shared memory.
            one, two = zip(*zip(loader.epoch(0), loader.epoch(0), strict=True), strict=True)
            same(one, expected)
            same(two, expected)


def test_every_sampler_can_be_loaded():
    data = lazy(13)
    samplers = [
        OrderedSampler(data, 4),
        BucketSampler(data, 4, bucket_size=3, seed=1),
        ChoiceSampler(data, 4, seed=2, samples=9),
        DistributedSampler(ShuffleSampler(data, 6, seed=3), 1, 2),
        # The last batch has one sample, so two of the ranks have none.
        DistributedSampler(OrderedSampler(data, 4), 2, 3),
        DealtSampler(OrderedSampler(data, 2), 1, 3),
    ]
    for sampler in samplers:
        with Loader(sampler, workers=2, augment=["flip"]) as loader:
            same(list(loader.epoch(2)), by_hand(sampler, 2, ["flip"], getattr(sampler, "seed", None) or 0))
            assert len(loader) == len(sampler) and loader.dataset is data
            assert (loader.batch_size, loader.drop_last) == (sampler.batch_size, sampler.drop_last)
            assert loader.seed == getattr(sampler, "seed", None)


def test_ranks_make_what_one_process_makes():
    """The augmentation of a sample follows its number in the set, so ranks change nothing."""
    serial = list(Loader(ShuffleSampler(lazy(), 6, seed=1), augment=STEPS).epoch(1))
    whole = Loader(ShuffleSampler(lazy(), 6, seed=1), workers=2, augment=STEPS)
    parts = []
    for rank in range(2):
        with whole.over(DistributedSampler(whole.sampler, rank, 2)) as loader:
            assert (loader.workers, loader.augment, loader.augment_seed) == (2, whole.augment, 1)
            parts.append(list(loader.epoch(1)))
    joined = [
        {name: np.concatenate([part[name] for part in pair]) for name in pair[0]}
        for pair in zip(*parts, strict=True)
    ]
    same(joined, serial)


def test_iterating_walks_over_the_epochs_and_can_be_resumed():
    loader = Loader(ShuffleSampler(lazy(), 8, seed=1))
    first, second = list(loader), list(loader)
    assert loader.next_epoch == 2
    loader.next_epoch = 1
    same(list(loader), second)
    assert not np.array_equal(first[0]["label"], second[0]["label"])


def test_a_set_in_memory_is_loaded_too():
    data = Dataset("m", {"image": np.random.default_rng(0).random((20, 1, 40, 40)), "label": np.arange(20)})
    sampler = ShuffleSampler(data, 6, seed=2)
    for kind in ("thread", "process"):
        with Loader(sampler, workers=2, kind=kind, augment=["crop:4"]) as loader:
            same(list(loader.epoch(0)), by_hand(sampler, 0, ["crop:4"], 2))


def test_mapped_files_are_mapped_again_and_not_sent(tmp_path):
    whole = np.random.default_rng(0).integers(0, 256, (9000, 40), dtype=np.uint8)
    (tmp_path / "bytes").write_bytes(b"x" * 7 + whole.tobytes())
    mapped = np.memmap(tmp_path / "bytes", np.uint8, "r", 7, whole.shape)
    for part, expected in ((mapped, whole), (mapped[100:7000], whole[100:7000])):
        pickled, buffers = workers._packed(part)
        assert len(pickled) < 1000 and not buffers
        again = workers.pickle.loads(pickled)
        np.testing.assert_array_equal(again, expected)
        assert isinstance(again, np.memmap) and not again.flags.writeable
    # A view with gaps, and one that may be written to, go as their contents.
    for part in (mapped[::2], np.memmap(tmp_path / "bytes", np.uint8, "c", 7, whole.shape)[:3000]):
        pickled, buffers = workers._packed(part)
        again = workers.pickle.loads(pickled, buffers=buffers)
        np.testing.assert_array_equal(again, np.asarray(part))
        assert len(pickled) + sum(b.nbytes for b in buffers) > part.nbytes


def test_work_ahead_is_bounded_and_an_epoch_left_early_cancels_the_rest():
    made = []
    release = threading.Event()

    @dataclass(frozen=True)
    class Slow(Read):
        def __call__(self, index):
            made.append(index)
            assert release.wait(20)
            return super().__call__(index)

    data = lazy(60)
    object.__setattr__(data, "read", Slow(data.read.pictures))
    with Loader(OrderedSampler(data, 1), workers=2, prefetch=3) as loader:
        batches = loader.epoch(0)
        thread = threading.Thread(target=lambda: next(batches))
        thread.start()
        time.sleep(0.1)
        assert sorted(made) == [0, 1]
        release.set()
        thread.join()
        deadline = time.time() + 10
        while len(made) < 7 and time.time() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        # One batch was taken: 2 * 3 others are ready, and no more.
        assert len(made) == 7
        release.clear()
        for _ in range(3):
            next(batches)
        batches.close()
        release.set()
    assert len(made) <= 7 + 3
    assert len(list(Loader(OrderedSampler(data, 10), workers=1).epoch(0))) == 6


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_errors_come_as_they_are_when_their_batch_is_asked_for(kind):
    for error in (UserError, KeyError):
        sampler = OrderedSampler(lazy(12, broken=7, error=error), 3)
        with Loader(sampler, workers=2, kind=kind) as loader:
            batches = loader.epoch(0)
            same([next(batches), next(batches)], by_hand(OrderedSampler(lazy(12), 3), 0)[:2])
            with pytest.raises(error, match="picture 7 is broken") as caught:
                next(batches)
            assert type(caught.value) is error
            with pytest.raises(StopIteration):
                next(batches)
            if error is UserError:
                # Another epoch begins anew.
                assert len(next(loader.epoch(0))["label"]) == 3


class Unpicklable(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def test_an_error_that_cannot_be_sent_comes_with_its_words():
    sent = workers._sendable(Unpicklable(1, 2))
    assert type(sent) is RuntimeError and str(sent) == "Unpicklable: 1 2"
    same_error = UserError("as it is")
    assert workers._sendable(same_error) is same_error


def test_a_worker_process_that_dies_gives_one_clear_error():
    with Loader(OrderedSampler(lazy(12, deadly=4), 3), workers=1, kind="process") as loader:
        with pytest.raises(UserError) as caught:
            list(loader.epoch(0))
        assert "dataset 'pictures': a worker process that loads it died" in str(caught.value)
        assert "\n" not in str(caught.value)
        # New workers for a new epoch.
        assert len(next(loader.epoch(0))["label"]) == 3


def test_a_set_that_cannot_be_sent_says_so():
    data = lazy(4)
    object.__setattr__(data, "prepare", lambda sample, index: {**prepared(sample, index)})
    with pytest.raises(UserError, match="'pictures' cannot be sent to worker processes: .*; use threads"):
        next(Loader(OrderedSampler(data, 2), workers=1, kind="process").epoch(0))
    assert len(list(Loader(OrderedSampler(data, 2), workers=1).epoch(0))) == 2


@dataclass(frozen=True)
class Inspect:
    """Tells of the process that reads: its number, threads of its libraries, and how it takes Ctrl-C."""

    def __call__(self, index):
        from threadpoolctl import threadpool_info

        threads = max([pool["num_threads"] for pool in threadpool_info()], default=1)
        ignores = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        return {"x": np.array([os.getpid(), threads, ignores], np.int64)}


def test_worker_processes_use_one_thread_leave_ctrl_c_to_the_main_one_and_end_with_it():
    data = LazyDataset("p", 8, Inspect(), {"x": (3,)}, {"x": np.int64}, label=None)
    loader = Loader(OrderedSampler(data, 1), workers=2, kind="process")
    found = np.concatenate([batch["x"] for batch in loader.epoch(0)])
    assert os.getpid() not in found[:, 0] and len(set(found[:, 0])) <= 2
    assert (found[:, 1] == 1).all() and found[:, 2].all()
    children = [child for child in multiprocessing.active_children() if child.pid in found[:, 0]]
    assert children
    loader.close()
    gc.collect()
    assert not any(child.is_alive() for child in children)


SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
from tests_loader import lazy
from meta500.datasets import OrderedSampler
from meta500.datasets.loader import Loader

if __name__ == "__main__":
    loader = Loader(OrderedSampler(lazy(40, (3, 64, 64)), 8), workers=2, kind="process")
    batches = loader.epoch(0)
    next(batches)
    import multiprocessing
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    how = sys.argv[1]
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "interrupt":
        try:
            os.killpg(0, signal.SIGINT)
            time.sleep(10)
        except KeyboardInterrupt:
            loader.close()
            sys.exit(130)
    elif how == "left":
        pass
"""


@pytest.mark.parametrize(("how", "code"), [("left", 0), ("interrupt", 130), ("kill", -signal.SIGKILL)])
def test_nothing_is_left_behind_however_the_main_process_ends(tmp_path, how, code):
    (tmp_path / "tests_loader.py").write_text(Path(__file__).read_text())
    (tmp_path / "main.py").write_text(textwrap.dedent(SCRIPT))
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    done = subprocess.run(
        [sys.executable, "-W", "error", "main.py", how],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert pids
    deadline = time.time() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.time() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    if how != "kill":
        assert done.stderr == ""
    names = set(os.listdir("/dev/shm")) - before if before else set()
    assert not [name for name in names if name.startswith(("psm_", "pym-", "sem.mp"))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers must be an integer of at least 0, not -1"),
        ({"kind": "fibre"}, "unknown kind of workers 'fibre'. Choose one of: process, thread"),
        ({"prefetch": 0}, "prefetch must be an integer of at least 1, not 0"),
        ({"augment": ["warp"]}, "unknown augmentation 'warp'"),
        ({"seed": -2}, "seed must be an integer of at least 0, not -2"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(UserError) as caught:
        Loader(OrderedSampler(lazy(), 4), **options)
    assert message in str(caught.value)


def test_only_samplers_are_loaded_and_epochs_are_numbers():
    with pytest.raises(UserError, match="a Loader takes a sampler with .dataset and .batches"):
        Loader(lazy())
    for wrong in ({"epoch": -1}, {"epoch": 0, "first": -1}):
        with pytest.raises(UserError, match="must be an integer of at least 0"):
            Loader(OrderedSampler(lazy(), 4)).epoch(**wrong)


def test_closing_within_an_epoch_is_told():
    loader = Loader(OrderedSampler(lazy(40), 1), workers=1, prefetch=2)
    batches = loader.epoch(0)
    next(batches)
    loader.close()
    with pytest.raises(UserError, match="its loader was closed while an epoch was under way"):
        for _ in batches:
            pass


def test_the_next_epoch_is_a_number():
    loader = Loader(OrderedSampler(lazy(), 4))
    for wrong in (-1, 1.5):
        loader.next_epoch = wrong
        with pytest.raises(UserError, match=f"next_epoch must be an integer of at least 0, not {wrong}"):
            iter(loader)


def test_a_sampler_that_changes_batches_is_refused():
    class Mixing(ShuffleSampler):
        def epoch(self, epoch):
            return ({name: array[::-1] for name, array in batch.items()} for batch in super().epoch(epoch))

    data = Dataset("d", {"image": np.zeros((8, 1)), "label": np.zeros(8, np.int64)})
    with pytest.raises(UserError, match=r"Mixing has an epoch\(\) of its own"):
        Loader(Mixing(data, 4))


def test_memory_is_made_for_the_largest_batch_of_the_epoch(monkeypatch):
    """A run that is resumed at a short last batch would send all later ones the slow way."""
    data = Dataset("d", {"image": np.zeros((10, 100, 100)), "label": np.zeros(10, np.int64)})
    found = []
    started = Loader._started
    monkeypatch.setattr(
        Loader,
        "_started",
        lambda self, load, samples: (found.append(samples), started(self, load, samples))[1],
    )
    with Loader(ShuffleSampler(data, 4), workers=1) as loader:
        assert [len(batch["label"]) for batch in loader.epoch(0, first=2)] == [2]
    assert found == [4]
