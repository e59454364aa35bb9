"""The old way to many clouds."""

from composer.utils.object_store._removed import RemovedObjectStore

__all__ = ["LibcloudObjectStore"]


class LibcloudObjectStore(RemovedObjectStore):
    """Says what to use in its place."""

    advice = "use an s3://, gs:// or az:// address"
