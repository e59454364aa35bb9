"""Where a run's data comes from, as MLflow is told."""

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from composer.utils.file_helpers import is_uri, parse_uri

__all__ = ["log_dataset_uri", "sources_of_data"]


def sources_of_data(cfg: Mapping[str, Any]) -> set[tuple[str, str, str]]:
    """Finds the data of a recipe.

    Returns:
        Of each source its kind (``local``, ``hf``, ``delta_table``, ``uc_volume`` or the scheme of
        its address), its path, and ``train`` or ``eval``.
    """
    found = set()
    for name in ("train", "eval"):
        loaders = cfg.get(f"{name}_loader") or []
        stated = cfg.get(f"source_dataset_{name}")
        for loader in loaders if isinstance(loaders, list) else [loaders]:
            sources = [(source, name) for source in _of_loader(loader, stated)]
            if not sources:
                warnings.warn(f"DataSource Not Found. The {name}_loader names no data.")
            found |= {(kind, path, name) for (kind, path), name in sources}
    return found


def _of_loader(loader: Mapping[str, Any], stated: str | None) -> Iterator[tuple[str, str]]:
    if stated and len(stated.split(".")) == 3:
        yield "delta_table", stated
        return
    if stated and stated.startswith("dbfs:"):
        yield "uc_volume", stated[len("dbfs:") :]
        return
    dataset = loader.get("dataset") or {}
    split = dataset.get("split") or ""
    name = dataset.get("hf_name")
    if name and is_uri(name):
        yield parse_uri(name)[0], os.path.join(name, split)
    elif name:
        yield "local" if os.path.exists(name) else "hf", name
    else:
        for stream in [*(dataset.get("streams") or {}).values(), dataset]:
            remote, local = stream.get("remote"), stream.get("local")
            if remote and is_uri(remote):
                folder = stream.get("split") or split
                yield parse_uri(remote)[0], os.path.join(remote, folder, "")
            elif remote or local:
                yield "local", str(remote or local)


def log_dataset_uri(cfg: Mapping[str, Any]) -> None:
    """Tells MLflow, where it logs the run, which data it trains and evaluates on."""
    if "mlflow" not in (cfg.get("loggers") or {}):
        return
    import mlflow
    import mlflow.data.sources
    from mlflow.data.dataset_source_registry import resolve_dataset_source
    from mlflow.data.delta_dataset_source import DeltaDatasetSource
    from mlflow.data.http_dataset_source import HTTPDatasetSource
    from mlflow.data.huggingface_dataset_source import HuggingFaceDatasetSource
    from mlflow.data.meta_dataset import MetaDataset
    from mlflow.data.uc_volume_dataset_source import UCVolumeDatasetSource
    from mlflow.exceptions import MlflowException

    if mlflow.active_run() is None:
        return
    made_at_import: Any = mlflow.data.sources
    makers = {
        "hf": HuggingFaceDatasetSource,
        "local": made_at_import.LocalArtifactDatasetSource,
        "delta_table": lambda path: DeltaDatasetSource(delta_table_name=path),
        "uc_volume": UCVolumeDatasetSource,
    }
    for kind, path, name in sorted(sources_of_data(cfg)):
        try:
            source = makers.get(kind, resolve_dataset_source)(path)
        except MlflowException:  # A store that it has no class for: what it keeps is the address.
            source = HTTPDatasetSource(path)
        mlflow.log_input(MetaDataset(source, name=name), context=name)
