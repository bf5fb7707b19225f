"""A run as one of MLflow, in a database file that needs no server."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meta500.errors import UserError
from meta500.metrics.events import RunState
from meta500.metrics.tickers.logs import ScalarTicker, hyper_parameters

EXPERIMENT = "meta500"
STATUSES = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
# MLflow takes this many metrics in a call.
BATCH = 1000
# Characters of a tag that every version of MLflow takes.
TAG = 5000
# What names of metrics must not contain, as a function's "<lambda>".
_FORBIDDEN = re.compile(r"[^\w./: -]")
# How old what is not in the database yet may become, in seconds: a transaction takes milliseconds.
FLUSH_SECONDS = 1.0


class MlflowWriter(ScalarTicker):
    """Write the database "mlflow/mlflow.db" (``path``: another folder); see `ScalarTicker` for the metrics.

    The run stands in the experiment "meta500". Its parameters are what is known of it as fields of result
    rows, the number of ``epochs`` asked for and the optimizer's hyper-parameters; tags name the run folder
    ("meta500.run") and why a run ended early ("meta500.reason"); the status is FINISHED also at a limit,
    FAILED, or KILLED by Ctrl-C. Characters that MLflow forbids in names of metrics become "_". Several runs
    may share a database, one after the other.

    It is SQLite and not MLflow's folder of files, which MLflow 3 refuses unless told otherwise. MLflow's
    telemetry is switched off, unless the variable MLFLOW_DISABLE_TELEMETRY says otherwise. ``written`` is the
    database, ``run_id`` MLflow's name of the run.
    """

    log = "mlflow"
    default_path = "mlflow"

    def __init__(self, path: str | Path | None = None, **what: Any) -> None:
        # MLflow reads it when it is imported.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        super().__init__(path, **what)
        self.written: Path | None = None
        self.run_id: str | None = None
        self._client: Any = None
        self._pending: list[Any] = []

    def before_run(self, state: RunState) -> None:
        super().before_run(state)
        self.written, self.run_id, self._client, self._pending = None, None, None, []
        folder = self.target(state).absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error.strerror or error}") from None
        self.written = folder / "mlflow.db"
        with self._failures():
            client = _client(self.written)
            found = client.get_experiment_by_name(EXPERIMENT)
            if found is None:
                artifacts = (folder / "artifacts").as_uri()
                experiment = client.create_experiment(EXPERIMENT, artifact_location=artifacts)
            else:
                experiment = found.experiment_id
            self._create(client, experiment, state)
        self._flushed = time.monotonic()

    def _create(self, client: Any, experiment: str, state: RunState) -> None:
        from mlflow.entities import Param

        fields = self.fields(state)
        tags = {} if state.folder is None else {"meta500.run": state.folder.id}
        name = " ".join(str(fields[key]) for key in ("model", "optimizer", "backend") if key in fields)
        run = client.create_run(experiment, int(1000 * self.at(0.0)), tags=tags, run_name=name)
        self.run_id, self._client = run.info.run_id, client
        known = {**fields, "epochs": state.epochs, **hyper_parameters(state.optimizer)}
        client.log_batch(self.run_id, params=[Param(key, str(value)) for key, value in known.items()])

    def add(self, scalars: Mapping[str, float], step: int, seconds: float) -> None:
        from mlflow.entities import Metric

        at = int(1000 * seconds)
        named = {_FORBIDDEN.sub("_", name): value for name, value in scalars.items()}
        self._pending += [Metric(name, float(value), at, step) for name, value in named.items()]
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._flush()

    def after_run(self, state: RunState) -> None:
        if self._client is None:
            return
        try:
            self._flush()
        finally:
            client, self._client = self._client, None
            with self._failures():
                if state.abort_reason:
                    client.set_tag(self.run_id, "meta500.reason", state.abort_reason[:TAG])
                end = int(1000 * self.at(state.wall_seconds))
                client.set_terminated(self.run_id, STATUSES[state.status], end)

    def _flush(self) -> None:
        while self._pending:
            with self._failures():
                self._client.log_batch(self.run_id, metrics=self._pending[:BATCH])
            del self._pending[:BATCH]
        self._flushed = time.monotonic()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """What the database raises as a UserError that names it."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (MlflowException, SQLAlchemyError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"{self.written} cannot be written: {reason}") from None


def _client(path: Path) -> Any:
    """A client of the database, which is made if it is missing; MLflow does not announce its tables."""
    from mlflow.tracking import MlflowClient

    logger = logging.getLogger("mlflow.store.db.utils")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        # The path of the address is unquoted, and "?" would begin its options.
        address = str(path).replace("%", "%25").replace("?", "%3F")
        return MlflowClient(tracking_uri=f"sqlite:///{address}")
    finally:
        logger.setLevel(level)
