"""The report of the study: findings first, then products, convolutions, networks and layers."""

from __future__ import annotations

from collections.abc import Sequence

from meta500.benchmarks.studies.compiler.findings_operations import mode_finding, operation_findings
from meta500.benchmarks.studies.compiler.sections_layers import layer_findings, layer_sections
from meta500.benchmarks.studies.compiler.sections_networks import network_findings, network_sections
from meta500.benchmarks.studies.compiler.sections_operations import operation_sections
from meta500.benchmarks.studies.select import unique
from meta500.metrics.report import Findings, Paragraph, Section
from meta500.metrics.rows import Row

CONTEXT = (
    "The thesis measured on an NVIDIA Tesla V100 GPU (figures 5.3 to 5.6) and an Intel Xeon E5-2698 v4, with "
    "PyTorch 2.3.0. What is compared with it here was measured on {devices} with PyTorch {versions} and "
    "{threads} threads of the CPU. Where the devices differ, a finding that contradicts the thesis says "
    "that its result does not carry over, not that it was wrong."
)


def sections(rows: Sequence[Row]) -> list[Section]:
    """The report, computed from the rows alone; whatever was not measured is said to be so."""
    findings = [
        *operation_findings(rows),
        *network_findings(rows),
        mode_finding(rows),
        *layer_findings(rows),
    ]
    measured = [row for row in rows if row.value is not None and row.backend == "torch"]

    def listed(column: str) -> str:
        return ", ".join(str(value) for value in unique(measured, column)) or "nothing yet"

    context = CONTEXT.format(devices=listed("device"), versions=listed("version"), threads=listed("threads"))
    return [
        Section("Findings", [Paragraph(context), Findings(findings)]),
        *operation_sections(rows),
        *network_sections(rows),
        *layer_sections(rows),
    ]
