"""Tables, frames and the plot of a profile of kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.benchmarks.kernel_counts import KINDS
from meta500.benchmarks.kernels import DIRECT, WITH_WINOGRAD, Found, Profile
from meta500.benchmarks.operators.roofline import PEAK
from meta500.benchmarks.tables import table_of
from meta500.metrics.statistics import Interval, median_interval, ratio_interval

if TYPE_CHECKING:
    import pandas as pd

GIGA, MILLI = 1e9, 1e-3
# Threads that wait spin for a while, so that they hardly sleep within a step.
_BUSY = 0.9
TITLES = {WITH_WINOGRAD: "as generated", DIRECT: "direct convolutions (winograd=False)"}
COUNTED = (
    "Rates are per core. Operations are counted for convolutions and other sums of products whose sums are "
    "blocked in registers, as those of the direct form: two per multiply-add, products with the zeros of the "
    "padding included. Winograd's forms do fewer, so that their share of the peak can be above 100 %. The "
    "peak is the best rate of a core that multiplies float32 matrices, before and after the rounds. Data: "
    "what a kernel reads and writes, once per image; the rate is above that of memory where a cache has it. "
    "Seconds in kernels are the mean over the threads; adding up private sums, waiting and Python are apart."
)


def kernel_frame(found: Found) -> pd.DataFrame:
    """One line per kernel, the longest first, for every form that was measured; units stand in the names.

    Times are medians over the rounds, of one step and thread; rates are per core. ``share_of_kernels`` sums
    to 1 over a form.
    """
    import pandas as pd

    return pd.DataFrame([line for profile in found.profiles for line in _lines(found, profile)])


def _lines(found: Found, profile: Profile) -> list[dict[str, Any]]:
    threads, limits = found.plan.threads, found.limits
    middle = np.median(profile.seconds, axis=0)
    total, wall = float(middle.sum()), float(np.median(profile.wall))
    lines = []
    for index in np.argsort(-middle, kind="stable"):
        work, seconds = profile.works[index], float(middle[index])
        low, high = (float(q) for q in np.quantile(profile.seconds[:, index], (0.25, 0.75)))
        speed = None if work.operations is None or not seconds else work.operations / seconds / threads
        rate = work.data_bytes / seconds / threads if seconds else None
        lines.append(
            {
                "network": found.title,
                "phase": found.plan.phase,
                "threads": threads,
                "rounds": len(profile.wall),
                "form": profile.name,
                "kernel": work.name,
                "kind": work.kind,
                "details": work.form,
                "origin": work.origin,
                "time_ms": seconds / MILLI,
                "time_quartile1_ms": low / MILLI,
                "time_quartile3_ms": high / MILLI,
                "share_of_kernels": seconds / total if total else 0.0,
                "share_of_step": seconds / wall,
                "operations_gflop": None if work.operations is None else work.operations / GIGA,
                "speed_gflop_per_s_per_core": None if speed is None else speed / GIGA,
                "share_of_peak": None if speed is None else speed / limits.peak,
                "data_mb": work.data_bytes / 1e6,
                "data_rate_gb_per_s_per_core": None if rate is None else rate / GIGA,
            }
        )
    return lines


def summary_frame(found: Found) -> pd.DataFrame:
    """One line per form: the step, its kernels, all sums of products together, and the machine's limits."""
    import pandas as pd

    return pd.DataFrame([_summary(found, profile) for profile in found.profiles])


def _summary(found: Found, profile: Profile) -> dict[str, Any]:
    threads, limits = found.plan.threads, found.limits
    products = [i for i, work in enumerate(profile.works) if work.operations is not None]
    operations = float(sum(profile.works[i].operations or 0 for i in products))
    inside = profile.seconds.sum(axis=1)
    line: dict[str, Any] = {
        "network": found.title,
        "phase": found.plan.phase,
        "threads": threads,
        "rounds": len(profile.wall),
        "form": profile.name,
        **_columns("step", "ms", median_interval([x / MILLI for x in profile.wall])),
        **_columns("kernels", "ms", median_interval(list(inside / MILLI))),
        **_columns("kernels_share_of_step", "", median_interval(list(inside / profile.wall))),
        "stopwatches_cost": None,
        "processor_share": float(np.median(profile.processor)),
        "peak_gflop_per_s_per_core": limits.peak / GIGA,
        "memory_gb_per_s": limits.memory / GIGA,
        "last_level_cache_gb_per_s_one_core": None if limits.cache is None else limits.cache / GIGA,
        "products_gflop": operations / GIGA,
    }
    if profile.name == WITH_WINOGRAD:
        line["stopwatches_cost"] = ratio_interval(profile.wall, found.plain, paired=True).value - 1
    if products:
        seconds = profile.seconds[:, products].sum(axis=1)
        speed = operations / seconds / threads
        line |= _columns("products", "ms", median_interval(list(seconds / MILLI)))
        line |= _columns("products_share_of_kernels", "", median_interval(list(seconds / inside)))
        line |= _columns("products", "gflop_per_s_per_core", median_interval(list(speed / GIGA)))
        line |= _columns("products_share_of_peak", "", median_interval(list(speed / limits.peak)))
    return line


def _columns(name: str, unit: str, found: Interval) -> dict[str, float]:
    unit = f"_{unit}" if unit else ""
    return {f"{name}{unit}": found.value, f"{name}_low{unit}": found.low, f"{name}_high{unit}": found.high}


def limits_table(found: Found) -> Any:
    """The machine's limits: rates of all threads together, and the best one's part per thread."""
    table = table_of(
        "Limits of this machine", ["what", "by"], ["threads", "best", "median", "best per thread"]
    )
    for roof in found.limits.roofs:
        unit = "GFLOP/s" if roof.quantity == PEAK else "GB/s"
        rates = (roof.best, float(np.median(roof.samples)), roof.best / roof.threads)
        cells = (f"{rate / GIGA:.3g} {unit}" for rate in rates)
        table.add_row(roof.what, roof.library, str(roof.threads), *cells)
    return table


def kernel_table(found: Found, frame: pd.DataFrame, profile: Profile, most: int) -> Any:
    """The longest kernels of one form."""
    lines = frame[frame["form"] == profile.name]
    plan = found.plan
    title = f"{found.title}, {plan.phase}, {plan.threads} thread(s), {TITLES[profile.name]}: "
    title += f"{min(most, len(lines))} longest of {len(lines)} kernels"
    right = ["ms", "share", "GFLOP/s", "of peak", "GB/s"]
    table = table_of(title, ["kernel", "kind"], right)
    for line in lines.head(most).to_dict("records"):
        table.add_row(
            line["kernel"],
            line["kind"],
            f"{line['time_ms']:.4g}",
            f"{line['share_of_kernels']:.1%}",
            _number(line["speed_gflop_per_s_per_core"], ".1f"),
            _number(line["share_of_peak"], ".0%"),
            _number(line["data_rate_gb_per_s_per_core"], ".1f"),
        )
    return table


def kinds_table(found: Found, frame: pd.DataFrame) -> Any:
    """Time and rate of all kernels of a kind together."""
    right = ["kernels", "ms", "share", "GFLOP/s", "of peak", "GB/s"]
    table = table_of(f"{found.title}, {found.plan.phase}: kinds of kernels", ["form", "kind"], right)
    threads = found.plan.threads
    for profile in found.profiles:
        mine = frame[frame["form"] == profile.name]
        for place, kind in enumerate(k for k in KINDS if (mine["kind"] == k).any()):
            group = mine[mine["kind"] == kind]
            seconds = float(group["time_ms"].sum()) * MILLI
            speed = float(group["operations_gflop"].sum()) / seconds / threads if seconds else 0.0
            rate = float(group["data_mb"].sum()) / 1e3 / seconds / threads if seconds else 0.0
            table.add_row(
                "" if place else TITLES[profile.name],
                kind,
                str(len(group)),
                f"{seconds / MILLI:.4g}",
                f"{group['share_of_kernels'].sum():.1%}",
                f"{speed:.1f}" if speed else "-",
                f"{speed * GIGA / found.limits.peak:.0%}" if speed else "-",
                f"{rate:.1f}",
            )
        table.add_section()
    return table


def summary_table(found: Found, summary: pd.DataFrame) -> Any:
    """Sums of products together, and kernels against the step, for every form; medians with intervals."""
    lines = summary.to_dict("records")
    table = table_of(
        f"{found.title}, {found.plan.phase}: summary",
        ["median [interval]"],
        [TITLES[x["form"]] for x in lines],
    )
    what = {
        "step, with stopwatches (ms)": ("step", "_ms", ".4g"),
        "kernels, mean over threads (ms)": ("kernels", "_ms", ".4g"),
        "kernels, share of the step": ("kernels_share_of_step", "", ".1%"),
        "convolutions: blocked sums of products (ms)": ("products", "_ms", ".4g"),
        "their share of the kernels": ("products_share_of_kernels", "", ".1%"),
        "their effective GFLOP/s per core": ("products", "_gflop_per_s_per_core", ".1f"),
        "their share of the peak": ("products_share_of_peak", "", ".1%"),
    }
    for title, (name, unit, style) in what.items():
        table.add_row(title, *(_interval(line, name, unit, style) for line in lines))
    table.add_row("their operations (GFLOP)", *(f"{line['products_gflop']:.4g}" for line in lines))
    table.add_row("processor time per thread", *(f"{line['processor_share']:.0%}" for line in lines))
    costs = (_number(line["stopwatches_cost"], "+.1%") for line in lines)
    table.add_row("longer because of the stopwatches", *costs)
    return table


def warning(summary: pd.DataFrame) -> str:
    """That the threads were not alone on their cores, or ""."""
    least = float(summary["processor_share"].min())
    if least >= _BUSY:
        return ""
    return (
        f"Warning: the threads had a processor for {least:.0%} of a step only. If they did not sleep, others "
        "used the machine: times are too long, and speeds and shares of the peak too low."
    )


def _interval(line: dict[str, Any], name: str, unit: str, style: str) -> str:
    found = [line.get(f"{name}{end}{unit}") for end in ("", "_low", "_high")]
    if found[0] is None or np.isnan(found[0]):
        return "-"
    value, low, high = (format(x, style) for x in found)
    return f"{value} [{low}, {high}]"


def _number(value: float | None, style: str) -> str:
    return "-" if value is None or np.isnan(value) else format(value, style)


def write(found: Found, folder: Path, most: int) -> list[Path]:
    """``kernels.csv``, ``summary.csv``, and for every form a plot of the longest kernels.

    Returns:
        The files that were written.

    Raises:
        UserError: the folder or a file in it can't be written.
    """
    from meta500.errors import UserError
    from meta500.metrics.plots import Part, draw_ranking, save

    frame = kernel_frame(found)
    written = [folder / "kernels.csv", folder / "summary.csv"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        frame.to_csv(written[0], index=False)
        summary_frame(found).to_csv(written[1], index=False)
    except OSError as error:
        raise UserError(f"'{error.filename}' cannot be written: {error.strerror or error}") from None
    for profile in found.profiles:
        longest = frame[frame["form"] == profile.name].head(most).to_dict("records")
        parts = [
            Part(line["kernel"], line["kind"], line["time_ms"], f"({line['share_of_kernels']:.1%})")
            for line in longest
        ]
        form = "" if profile.name == WITH_WINOGRAD else f", {profile.name}"
        title = f"{found.title}, {found.plan.phase}{form}: the {len(parts)} longest of "
        title += f"{len(profile.works)} kernels"
        figure = draw_ranking(
            parts,
            quantity="time per step and thread, with its share of all kernels",
            unit="ms",
            groups=KINDS,
            title=title,
        )
        name = "kernels" if profile.name == WITH_WINOGRAD else f"kernels-{profile.name}"
        written += save(figure, [folder / f"{name}.png", folder / f"{name}.pdf"])
    return written
