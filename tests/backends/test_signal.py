"""DFT, STFT, windows and the mel matrix on both backends: against the sums of their definition and scipy."""

import numpy as np
import pytest
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.errors import UserError

BACKENDS = ("numpy", "torch")


def complexes(x):
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def pairs(z):
    return np.stack((z.real, z.imag), -1)


def transform(z, axis, length, inverse):
    """The sum that defines the DFT, as a matrix product."""
    z = np.moveaxis(z, axis, -1)[..., :length]
    n, k = np.arange(z.shape[-1]), np.arange(length)[:, None]
    matrix = np.exp((2j if inverse else -2j) * np.pi * k * n / length)
    return np.moveaxis(z @ matrix.T / (length if inverse else 1), -1, axis)


@settings(max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 4)),
    parts=st.integers(1, 2),
    axis=st.integers(0, 2),
    length=st.one_of(st.none(), st.integers(1, 8)),
    inverse=st.integers(0, 1),
    negative=st.booleans(),
    seed=st.integers(0, 99),
)
def test_dft_is_its_sum(agree, shape, parts, axis, length, inverse, negative, seed) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(*shape, parts))
    size = shape[axis] if length is None else length
    given_length = None if length is None else np.array(length)
    place = np.array(axis - 4 if negative else axis)
    target = (*shape[:axis], size, *shape[axis + 1 :], 2)
    values, _ = agree(
        "DFT", 20, [x, given_length, place], inverse=inverse, cotangents={0: rng.normal(size=target)}
    )
    np.testing.assert_allclose(
        values[0], pairs(transform(complexes(x), axis, size, inverse)), rtol=1e-10, atol=1e-11
    )


@settings(max_examples=25)
@given(size=st.integers(1, 9), pad=st.integers(-2, 3), seed=st.integers(0, 99))
def test_onesided_dft_and_its_inverse(agree, size, pad, seed) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, size, 1))
    length = max(size + pad, 1)
    bins = length // 2 + 1
    forward, _ = agree(
        "DFT", 20, [x, np.array(length)], onesided=1, cotangents={0: rng.normal(size=(2, bins, 2))}
    )
    full = transform(complexes(x), 1, length, 0)
    np.testing.assert_allclose(forward[0], pairs(full)[:, :bins], rtol=1e-10, atol=1e-11)
    back, _ = agree(
        "DFT", 20, [forward[0], np.array(length)], onesided=1, inverse=1,
        cotangents={0: rng.normal(size=(2, length, 1))},
    )  # fmt: skip
    kept = np.zeros((2, length, 1))
    kept[:, : min(size, length)] = x[:, :length]
    np.testing.assert_allclose(back[0], kept, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dft_17_has_its_axis_as_an_attribute(node, backend) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 2))
    for axis in (1, 2, -2):
        (y,), _ = node(backend, "DFT", 17, [x], axis=axis)
        (newer,), _ = node(backend, "DFT", 20, [x, None, np.array(axis)])
        np.testing.assert_array_equal(y, newer)
    np.testing.assert_array_equal(
        node(backend, "DFT", 17, [x])[0][0], node(backend, "DFT", 17, [x], axis=1)[0][0]
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shape", "length", "axis", "options", "message"),
    [
        ((3, 4, 3), None, 1, {}, "last axis should be 1"),
        ((3, 4, 2), None, 2, {}, "axis 2 is outside"),
        ((3, 4, 2), None, -1, {}, "axis -1 is outside"),
        ((3, 4, 2), 0, 1, {}, "length is 0"),
        ((3, 4, 2), None, 1, {"onesided": 1}, "needs real input"),
        ((3, 4, 1), None, 1, {"onesided": 1, "inverse": 1}, "needs complex input"),
        ((3, 1, 2), None, 1, {"onesided": 1, "inverse": 1}, "length is 0"),
    ],
)
def test_dft_refuses_what_does_not_fit(node, backend, shape, length, axis, options, message) -> None:
    inputs = [np.zeros(shape), None if length is None else np.array(length), np.array(axis)]
    with pytest.raises(UserError, match=message):
        node(backend, "DFT", 20, inputs, **options)


@settings(max_examples=25)
@given(
    length=st.integers(1, 9),
    frame=st.integers(1, 6),
    step=st.integers(1, 4),
    parts=st.integers(1, 2),
    onesided=st.booleans(),
    windowed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_stft_is_the_dft_of_windowed_frames(agree, length, frame, step, parts, onesided, windowed, seed):
    rng = np.random.default_rng(seed)
    frame = min(frame, length)
    onesided = onesided and parts == 1
    signal = rng.normal(size=(2, length, parts))
    window = rng.normal(size=frame) if windowed else None
    starts = range(0, length - frame + 1, step)
    frames = np.stack([complexes(signal)[:, s : s + frame] for s in starts], 1)
    spectrum = transform(frames if window is None else frames * window, 2, frame, 0)
    expected = pairs(spectrum)[:, :, : frame // 2 + 1 if onesided else frame]
    values, _ = agree(
        "STFT", 17, [signal, np.array(step), window, np.array(frame)], onesided=int(onesided),
        cotangents={0: rng.normal(size=expected.shape)},
    )  # fmt: skip
    np.testing.assert_allclose(values[0], expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shape", "step", "window", "length", "onesided", "message"),
    [
        ((2, 8), 2, None, 4, 1, "should be"),
        ((2, 8, 2), 2, None, 4, 1, "no one-sided"),
        ((2, 8, 1), 2, 3, 4, 1, "window has shape"),
        ((2, 8, 1), 2, None, 9, 1, "frame length 9"),
        ((2, 8, 1), 0, None, 4, 1, "frame step 0"),
    ],
)
def test_stft_refuses_what_does_not_fit(node, backend, shape, step, window, length, onesided, message):
    inputs = [np.zeros(shape), np.array(step), None if window is None else np.ones(window), np.array(length)]
    with pytest.raises(UserError, match=message):
        node(backend, "STFT", 17, inputs, onesided=onesided)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [2, 7, 10])
@pytest.mark.parametrize("name", ["hann", "hamming", "blackman"])
def test_windows(node, backend, name, size) -> None:
    operator = f"{name.capitalize()}Window"
    for periodic in (1, 0):
        (found,), _ = node(backend, operator, 17, [np.array(size)], output_datatype=11, periodic=periodic)
        expected = scipy.signal.get_window(name, size, fftbins=bool(periodic))
        if name == "hamming":  # ONNX has 25/46 where scipy has 0.54
            n = np.arange(size) / max(size if periodic else size - 1, 1)
            expected = 25 / 46 - (1 - 25 / 46) * np.cos(2 * np.pi * n)
        np.testing.assert_allclose(found, expected, atol=1e-14)
        assert found.dtype == np.float64


@pytest.mark.parametrize("backend", BACKENDS)
def test_windows_of_size_one_and_below(node, backend) -> None:
    """The periodic formula holds for one element; the symmetric one divides by zero there."""
    assert node(backend, "HannWindow", 17, [np.array(1)])[0][0].tolist() == [0]
    assert node(backend, "HannWindow", 17, [np.array(0)])[0][0].shape == (0,)
    for size, periodic in ((-1, 1), (1, 0)):
        with pytest.raises(UserError, match="size"):
            node(backend, "HannWindow", 17, [np.array(size)], periodic=periodic)


@pytest.mark.parametrize("backend", BACKENDS)
def test_mel_matrix_has_triangles_of_height_one_between_neighbouring_bands(node, backend) -> None:
    bands, length, rate, low, high = 6, 256, 16000, 100.0, 7000.0
    numbers = [np.array(n) for n in (bands, length, rate)] + [np.array(low), np.array(high)]
    (found,), _ = node(backend, "MelWeightMatrix", 17, numbers, output_datatype=11)

    def mel(hertz):
        return 2595 * np.log10(1 + hertz / 700)

    # ONNX's step: the range over bands + 2, so that the last triangle ends below the upper edge.
    mels = mel(low) + np.arange(bands + 2) * (mel(high) - mel(low)) / (bands + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    bins = np.floor((length + 1) * edges / rate).astype(int)
    assert found.shape == (length // 2 + 1, bands)
    for band in range(bands):
        column, (left, centre, right) = found[:, band], bins[band : band + 3]
        assert column[centre] == 1 and (column[:left] == 0).all() and (column[right:] == 0).all()
        rising = (np.arange(left, centre) - left) / (centre - left)
        np.testing.assert_allclose(column[left:centre], rising, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_complex_inverse_is_right_on_torch_wherever_it_runs(node, dtype) -> None:
    """float32 runs on the host with numpy's rounding, float64 natively."""
    x = np.random.default_rng(1).normal(size=(2, 10, 2)).astype(dtype)
    (found,), gradients = node("torch", "DFT", 20, [x], inverse=1, cotangents={0: np.ones((2, 10, 2), dtype)})
    expected = pairs(np.fft.ifft(complexes(x), axis=1))
    np.testing.assert_allclose(found, expected, atol=0 if dtype == "float32" else 1e-15)
    ones = np.full((2, 10), 1 + 1j, complex)
    np.testing.assert_allclose(gradients["x0"], pairs(np.fft.fft(ones, axis=1) / 10), atol=1e-6)
