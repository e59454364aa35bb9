"""The store of the Oracle cloud."""

from composer.utils.object_store._removed import RemovedObjectStore

__all__ = ["OCIObjectStore"]


class OCIObjectStore(RemovedObjectStore):
    """Says what to use in its place."""

    advice = "use the S3 compatible address of OCI, s3:// with S3_ENDPOINT_URL"
