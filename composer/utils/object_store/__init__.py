"""Stores of files beyond a plain path."""

from composer.utils.object_store.azure_object_store import AzureObjectStore
from composer.utils.object_store.gcs_object_store import GCSObjectStore
from composer.utils.object_store.libcloud_object_store import LibcloudObjectStore
from composer.utils.object_store.local_object_store import LocalObjectStore
from composer.utils.object_store.mlflow_object_store import MLFlowObjectStore
from composer.utils.object_store.object_store import (
    NoSuchStoreError,
    ObjectStore,
    ObjectStoreTransientError,
)
from composer.utils.object_store.oci_object_store import OCIObjectStore
from composer.utils.object_store.remote_object_store import FsspecObjectStore, RemoteObjectStore
from composer.utils.object_store.s3_object_store import S3ObjectStore
from composer.utils.object_store.sftp_object_store import SFTPObjectStore
from composer.utils.object_store.uc_object_store import UCObjectStore
from composer.utils.object_store.utils import build_remote_backend

__all__ = [
    "AzureObjectStore",
    "FsspecObjectStore",
    "GCSObjectStore",
    "LibcloudObjectStore",
    "LocalObjectStore",
    "MLFlowObjectStore",
    "NoSuchStoreError",
    "OCIObjectStore",
    "ObjectStore",
    "ObjectStoreTransientError",
    "RemoteObjectStore",
    "S3ObjectStore",
    "SFTPObjectStore",
    "UCObjectStore",
    "build_remote_backend",
]
