"""The report from rows alone: whole, in parts, and empty."""

import pytest

from meta500.benchmarks.studies.codegen import sections
from meta500.metrics.report import Figure, Findings, Paragraph, Table
from meta500.metrics.report.findings import NOT_MEASURED

TITLES = [
    "Findings",
    "Epochs per second",
    "Generating and compiling",
    "Memory",
    "Time by kind of layer",
    "Convolutions under the roofline",
]


@pytest.fixture(scope="module")
def parts(synthetic):
    """Rows of each part of the study."""
    epochs = []
    for n in (0, 1):
        for threads in (1, 2):
            where = synthetic.point(n=n, threads=threads)
            epochs += synthetic.race(where, 2.0 * threads / (n + 1), eager=0.5, channels_last=0.7)
    refused = synthetic.row("compile", "epoch_rate", None, verdict="unsupported", note="too large")
    large = [synthetic.row("generated", "epoch_rate", 1.0, synthetic.point(batch=64)), refused]
    generation = []
    for n, count in ((0, 5879.0), (3, 368955.0)):
        where = synthetic.point(n=n)
        generation.append(synthetic.row("generated", "parameters", count, where))
        for step in ("lowering", "scheduling", "printing", "generating", "compiling"):
            generation.append(synthetic.timed(step, 1.0 + n, where))
        cold = {"protocol": "alone, cold start"}
        generation.append(synthetic.row("compile", "first_call", 30.0 + n, where, **cold))
    memory = []
    for n in (0, 3):
        where = synthetic.point(n=n)
        for variant, peak in (("generated", 2.0**27), ("eager", 2.0**29)):
            memory.append(synthetic.row(variant, "peak_memory", peak * (n + 1), where))
            memory.append(synthetic.row(variant, "memory_before", 2.0**26, where))
        memory.append(synthetic.row("generated", "planned_memory", 2.0**26, where))
    one = synthetic.point(threads=1)
    layers = [synthetic.row("generated", "convolution_share", 0.8, one)]
    for operator, share in (("convolution + ReLU, forward", 0.8), ("optimizer", 0.2)):
        layers.append(synthetic.row("generated", "layer_time", share, one, operator=operator))
        layers.append(synthetic.row("generated", "layer_share", share, one, operator=operator))
        amount = {"operator": operator, "node": "convolution forward"}
        layers.append(synthetic.row("generated", "arithmetic", 1e9, one, **amount))
    layers.append(synthetic.row("generated", "layer_time", 0.1, one, operator="outside of kernels"))
    layers.append(synthetic.row("generated", "stopwatch_cost", 1.02, one))
    convolution = synthetic.convolution
    roofline = synthetic.roofs(1267e9, 70e9)
    for quantity, value in (("flops", 7.25e9), ("bytes_read", 201e6), ("bytes_written", 537e6)):
        roofline.append(convolution(quantity, value))
    for variant, seconds in (("generated", 0.02), ("eager", 0.03)):
        roofline.append(convolution("time", seconds, variant=variant, verdict="ok"))
        roofline.append(convolution("epoch_rate", 0.5 / seconds, variant=variant, verdict="ok"))
        roofline.append(convolution("light_share", 0.01 / seconds, variant=variant, note="bound by memory"))
        roofline.append(convolution("light_speed", 47.4, variant=variant, note="bound by memory"))
    roofline.append(convolution("traffic_read", None, verdict="unsupported", note="a virtual machine"))
    return {
        "epochs": [*epochs, *large],
        "generation": generation,
        "memory": memory,
        "layers": layers,
        "roofline": roofline,
    }


def of_kind(found, kind):
    return [part for section in found for part in section.parts if isinstance(part, kind)]


def text_of(found):
    cells = [cell for table in of_kind(found, Table) for row in table.rows for cell in row]
    return " ".join([*(p.text for p in of_kind(found, Paragraph)), *cells])


def test_the_whole_report(parts):
    found = sections([row for rows in parts.values() for row in rows])
    assert [section.title for section in found] == TITLES
    figures = of_kind(found, Figure)
    names = ["speedup-batch-8", "epochs-per-second-batch-8", "epochs-per-second-batch-64", "generation"]
    names += ["memory", "layers", "convolutions", "roofline"]
    assert [figure.name for figure in figures] == names
    for figure in figures:
        assert figure.draw().get_axes()
    text = text_of(found)
    assert "Not measured" not in text and "not the thesis' size" not in text
    assert "unsupported" in text
    # Work of an epoch: two calls with 64 images.
    assert "14.5" in text and "1476" in text
    # 2^27 at the peak less 2^26 before: as planned.
    assert "64 MiB / 64 MiB" in text
    (findings,) = of_kind(found, Findings)
    assert all(finding.verdict for finding in findings.findings)


@pytest.mark.parametrize("part", ["epochs", "generation", "memory", "layers", "roofline"])
def test_a_part_alone_and_all_but_it(parts, part):
    alone = sections(parts[part])
    assert text_of(alone).count("Not measured: the part") == 4
    others = sections([row for name, rows in parts.items() if name != part for row in rows])
    assert f"Not measured: the part {part} was not chosen" in text_of(others)
    for found in (alone, others):
        assert [section.title for section in found] == TITLES
        for figure in of_kind(found, Figure):
            assert figure.draw().get_axes()


@pytest.mark.parametrize(
    ("part", "step"), [("roofline", 1), ("generation", 3), ("memory", 2), ("layers", 2), ("epochs", 7)]
)
def test_any_beginning_of_the_rows_is_a_report_that_can_be_drawn(parts, part, step):
    """A study that was interrupted: no number of rows makes it, or one of its figures, fail."""
    drawn = ""
    for count in range(0, len(parts[part]), step):
        found = sections(parts[part][:count])
        for figure in of_kind(found, Figure):
            assert figure.draw().get_axes()
            drawn += figure.name
    assert drawn


def test_a_rate_that_failed_has_no_bar(synthetic):
    """Times of a layer without any rate: no figure, instead of one that cannot be drawn."""
    rows = [synthetic.convolution(q, 1e9) for q in ("flops", "bytes_read", "bytes_written", "time")]
    rows.append(synthetic.convolution("epoch_rate", None, verdict="failed", note="ended"))
    assert not [figure for figure in of_kind(sections(rows), Figure) if figure.name == "convolutions"]


def test_without_rows_nothing_is_claimed():
    found = sections([])
    (findings,) = of_kind(found, Findings)
    assert {finding.verdict for finding in findings.findings} == {NOT_MEASURED}
    assert not of_kind(found, Figure) and not of_kind(found, Table)


def test_another_size_is_told(synthetic):
    rows = synthetic.race(synthetic.point(size=128), 1.0, eager=0.5)
    assert "images have 128 x 128 pixels instead of 512 x 512" in text_of(sections(rows))
    assert "not the thesis' size" not in text_of(sections(synthetic.race(synthetic.point(), 1.0, eager=0.5)))
