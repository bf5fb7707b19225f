"""Lowering rules, one module per family of operators."""
