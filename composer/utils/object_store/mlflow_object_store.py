"""Artifacts of MLflow runs on Databricks."""

from composer.utils.object_store._removed import RemovedObjectStore

__all__ = ["MLFlowObjectStore"]


class MLFlowObjectStore(RemovedObjectStore):
    """Says what to use in its place."""

    advice = "keep files at an s3://, gs:// or az:// address, or let MLFlowLogger log the model"
