"""Recipes: training experiments with fixed and mutable parts, and metrics with acceptance bounds.

A recipe is a TOML file (see `meta500.benchmarks.recipes.recipe`). Running one trains with several seeds and
says for each metric, from a confidence interval over the seeds, whether the published value is reproduced.

Source of the idea: T. Ben-Nun et al., "A Modular Benchmarking Infrastructure for High-Performance and
Reproducible Deep Learning" (Deep500), IPDPS 2019: recipes whose fixed part is what has to be kept for a
comparison, and whose mutable part is what may be optimised.
"""
