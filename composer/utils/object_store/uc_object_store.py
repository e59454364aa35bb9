"""Volumes of the Unity Catalog."""

from composer.utils.object_store._removed import RemovedObjectStore

__all__ = ["UCObjectStore"]


class UCObjectStore(RemovedObjectStore):
    """Says what to use in its place."""

    advice = "use the s3://, gs:// or az:// address of the bucket under the volume"
