"""Azure Blob Storage."""

import os
from typing import Any

from composer.utils.object_store._drivers import ObstoreDriver, built, obstore_options
from composer.utils.object_store.remote_object_store import RemoteObjectStore

__all__ = ["AzureObjectStore"]


class AzureObjectStore(RemoteObjectStore):
    """A container of Azure Blob Storage, ``az://container/name`` or, as of old, ``azure://``.

    The account is ``AZURE_ACCOUNT_NAME``, its key ``AZURE_ACCOUNT_ACCESS_KEY``; obstore's own
    variables (``AZURE_STORAGE_*``, ``AZURE_CLIENT_ID`` and so on) serve as well. Run against an
    imitation on loopback, never against Azure itself.

    Args:
        bucket: The container's name.
        prefix: The folder that object names are relative to.
        **options: Settings of obstore's client, such as ``sas_token`` or ``endpoint``.
    """

    def __init__(self, bucket: str, prefix: str = "", **options: Any) -> None:
        from obstore.store import AzureStore

        for name, variable in (
            ("account_name", "AZURE_ACCOUNT_NAME"),
            ("account_key", "AZURE_ACCOUNT_ACCESS_KEY"),
        ):
            if os.environ.get(variable) and not (name == "account_key" and "sas_token" in options):
                options.setdefault(name, os.environ[variable])
        if "account_name" not in options and "AZURE_STORAGE_ACCOUNT_NAME" not in os.environ:
            raise ValueError(
                f"az://{bucket} needs the name of its account: set AZURE_ACCOUNT_NAME (and "
                "AZURE_ACCOUNT_ACCESS_KEY, or another of Azure's credentials)."
            )
        endpoint = options.get("endpoint")
        store = built(AzureStore, bucket.strip("/"), **obstore_options(endpoint), **options)
        super().__init__(ObstoreDriver(store), "az", bucket, prefix, options)
