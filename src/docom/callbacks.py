"""Callbacks that show a run's records elsewhere: TensorBoard, MLflow, Weights & Biases.

Each is called with every record, as ``docom.simulate(..., callback=TensorBoard("logs"))``, and never stops the run. The
packages are optional, and imported when a callback is made.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from docom.records import Record


def _measures(record: Record) -> dict[str, float]:
    return {key: float(value) for key, value in record.items() if key != "step"}


def needed(module: str, extra: str) -> Any:
    """An optional package, imported.

    Raises:
        ValueError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(f"{extra} is not installed; pip install 'docom[{extra}]'") from None


class TensorBoard:
    """Writes event files that ``tensorboard --logdir FOLDER`` shows.

    folder: where they go. What earlier runs have written there is no longer shown.
    """

    def __init__(self, folder: Path | str) -> None:
        needed("tensorboard", "tensorboard")
        self.writer = needed("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder), purge_step=0)

    def __call__(self, record: Record) -> None:
        """Write one record."""
        for key, value in _measures(record).items():
            self.writer.add_scalar(key, value, int(record["step"]))
        self.writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self.writer.close()


class MLflow:
    """Logs to the active MLflow run, or to a new one.

    settings: parameters of the run to log once.
    """

    def __init__(self, settings: dict[str, Any] | None = None) -> None:
        self.mlflow = needed("mlflow", "mlflow")
        if settings:
            self.mlflow.log_params(settings)

    def __call__(self, record: Record) -> None:
        """Log one record."""
        self.mlflow.log_metrics(_measures(record), step=int(record["step"]))


class WandB:
    """Logs to a Weights & Biases run.

    options: what ``wandb.init`` takes, such as project="..." and mode="offline".
    """

    def __init__(self, **options: Any) -> None:
        self.run = needed("wandb", "wandb").init(**options)

    def __call__(self, record: Record) -> None:
        """Log one record."""
        self.run.log(_measures(record), step=int(record["step"]), commit=True)  # else it waits for the next record
