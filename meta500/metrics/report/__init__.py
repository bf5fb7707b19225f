"""Reports: pages, tables and findings, made from result rows."""

from meta500.metrics.report.findings import VERDICTS, Finding
from meta500.metrics.report.page import write_page
from meta500.metrics.report.parts import Figure, Findings, Paragraph, Section, Table

__all__ = ["VERDICTS", "Figure", "Finding", "Findings", "Paragraph", "Section", "Table", "write_page"]
