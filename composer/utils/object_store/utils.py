"""Building a store from its scheme."""

from collections.abc import Callable
from typing import Any

from composer.utils.object_store.azure_object_store import AzureObjectStore
from composer.utils.object_store.gcs_object_store import GCSObjectStore
from composer.utils.object_store.libcloud_object_store import LibcloudObjectStore
from composer.utils.object_store.local_object_store import LocalObjectStore
from composer.utils.object_store.mlflow_object_store import MLFlowObjectStore
from composer.utils.object_store.object_store import NoSuchStoreError, ObjectStore
from composer.utils.object_store.oci_object_store import OCIObjectStore
from composer.utils.object_store.remote_object_store import FsspecObjectStore
from composer.utils.object_store.s3_object_store import S3ObjectStore
from composer.utils.object_store.sftp_object_store import SFTPObjectStore
from composer.utils.object_store.uc_object_store import UCObjectStore

__all__ = ["build_remote_backend"]


def build_remote_backend(remote_backend_name: str, backend_kwargs: dict[str, Any]) -> ObjectStore:
    """Returns a store of the kind that a URI scheme names.

    Args:
        remote_backend_name: The scheme, such as ``s3``.
        backend_kwargs: The store's own arguments.

    Raises:
        ValueError: If there is no store for the scheme; also a NotImplementedError.
    """
    # A new kind of store is one line here. Looked up in the call: programs' tests replace a class.
    stores: dict[str, Callable[..., ObjectStore]] = {
        "az": AzureObjectStore,
        "azure": AzureObjectStore,
        "dbfs": _of_databricks,
        "file": LocalObjectStore,
        "gs": GCSObjectStore,
        "hf": lambda **kwargs: FsspecObjectStore("hf", **kwargs),
        "libcloud": LibcloudObjectStore,
        "memory": lambda **kwargs: FsspecObjectStore("memory", **kwargs),
        "oci": OCIObjectStore,
        "s3": S3ObjectStore,
        "sftp": SFTPObjectStore,
    }
    if remote_backend_name not in stores:
        raise NoSuchStoreError(
            f"There is no object store for {remote_backend_name}://; use one of "
            "s3://, gs://, az://, hf://, sftp://, file://, memory:// or a local path."
        )
    return stores[remote_backend_name](**backend_kwargs)


def _of_databricks(path: str = "", **kwargs: Any) -> ObjectStore:
    kind = MLFlowObjectStore if path.startswith("databricks/mlflow-tracking/") else UCObjectStore
    return kind(path, **kwargs)
