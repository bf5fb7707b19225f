"""Tickers: small objects that listen to the events of a training run, one subject per file."""

from __future__ import annotations

from meta500.metrics.tickers.csv_writer import CsvWriter
from meta500.metrics.tickers.jsonl_writer import JsonlWriter
from meta500.metrics.tickers.limits import AccuracyLimit, ScoreLimit, StepLimit, TimeLimit
from meta500.metrics.tickers.logs import LogTicker, ScalarTicker, check_packages, create_log
from meta500.metrics.tickers.metric import MetricTicker
from meta500.metrics.tickers.mlflow_writer import MlflowWriter
from meta500.metrics.tickers.mlperf_writer import MlperfWriter
from meta500.metrics.tickers.nan_abort import NanAbort
from meta500.metrics.tickers.plots import PlotsTicker
from meta500.metrics.tickers.progress import ProgressTicker
from meta500.metrics.tickers.progress_file import ProgressFile
from meta500.metrics.tickers.rows import RowsTicker
from meta500.metrics.tickers.schedule import ScheduleTicker
from meta500.metrics.tickers.step_times import StepTimesTicker
from meta500.metrics.tickers.summary import EpochSummary, Reached, Summary, SummaryTicker
from meta500.metrics.tickers.tensorboard_writer import TensorBoardWriter

__all__ = [
    "AccuracyLimit",
    "CsvWriter",
    "EpochSummary",
    "JsonlWriter",
    "LogTicker",
    "MetricTicker",
    "MlflowWriter",
    "MlperfWriter",
    "NanAbort",
    "PlotsTicker",
    "ProgressFile",
    "ProgressTicker",
    "Reached",
    "RowsTicker",
    "ScalarTicker",
    "ScheduleTicker",
    "ScoreLimit",
    "StepLimit",
    "StepTimesTicker",
    "Summary",
    "SummaryTicker",
    "TensorBoardWriter",
    "TimeLimit",
    "check_packages",
    "create_log",
]
