"""Google Cloud Storage."""

import os
from typing import Any

from composer.utils.object_store._drivers import ObstoreDriver, built, obstore_options
from composer.utils.object_store.remote_object_store import RemoteObjectStore

__all__ = ["GCSObjectStore"]

_S3_ENDPOINT = "https://storage.googleapis.com"


class GCSObjectStore(RemoteObjectStore):
    """A bucket of Google Cloud Storage.

    With ``GCS_KEY`` and ``GCS_SECRET`` (an HMAC key) it is reached as Google's imitation of S3.
    Otherwise the default credentials count: ``GOOGLE_APPLICATION_CREDENTIALS``, those of gcloud,
    or the machine's account. Run against an imitation on loopback, never against Google itself.

    Args:
        bucket: The bucket's name.
        prefix: The folder that object names are relative to.
        **options: Settings of obstore's client, such as ``skip_signature`` for public buckets.
    """

    def __init__(self, bucket: str, prefix: str = "", **options: Any) -> None:
        from obstore.store import GCSStore, S3Store

        self.bucket_name = bucket.strip("/")
        key, secret = os.environ.get("GCS_KEY"), os.environ.get("GCS_SECRET")
        self.use_gcs_sdk = not (key and secret)
        if self.use_gcs_sdk:
            kind: Any = GCSStore
            endpoint = options.get("base_url") or os.environ.get("GOOGLE_BASE_URL")
        else:
            kind, endpoint = S3Store, options.get("endpoint", _S3_ENDPOINT)
            options = {
                "endpoint": endpoint,
                "region": "auto",
                "access_key_id": key,
                "secret_access_key": secret,
                **options,
            }
        store = built(kind, self.bucket_name, **obstore_options(endpoint), **options)
        super().__init__(ObstoreDriver(store), "gs", bucket, prefix, options)
