"""Amazon S3, and every server that speaks its language."""

import configparser
import http.client
import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from composer.utils.import_helpers import MissingConditionalImportError
from composer.utils.object_store._drivers import ObstoreDriver, built, obstore_options
from composer.utils.object_store.remote_object_store import RemoteObjectStore

__all__ = ["S3ObjectStore"]

# What boto3 calls the settings of an upload, and what obstore does.
_ATTRIBUTES = {
    "CacheControl": "Cache-Control",
    "ContentDisposition": "Content-Disposition",
    "ContentEncoding": "Content-Encoding",
    "ContentLanguage": "Content-Language",
    "ContentType": "Content-Type",
    "StorageClass": "Storage-Class",
}
# Where boto3 looks before the files of profiles.
_CREDENTIAL_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
# A profile with one of these needs a conversation that only boto3 knows.
_NEED_BOTO3 = ("role_arn", "sso_session", "sso_start_url", "credential_process", "login_session")

_ASK_AGAIN = timedelta(minutes=5)


class S3ObjectStore(RemoteObjectStore):
    """A bucket of S3.

    Credentials come from the arguments, the environment (``AWS_*``), the profile files of the AWS
    tools, or the machine's role, in this order; a profile that signs in (SSO, a role, a process)
    needs boto3. ``S3_CANNED_ACL`` is the ACL of what is uploaded; it is sent with each part of a
    large upload too, which was run against moto but not against AWS itself.

    Args:
        bucket: The bucket's name.
        prefix: The folder that object names are relative to.
        region_name: The region; by default the environment's, the profile's, or, if that was wrong,
            the one that AWS says the bucket is in.
        endpoint_url: Another server; by default ``S3_ENDPOINT_URL``, then ``AWS_ENDPOINT_URL``.
        aws_access_key_id: The key's name.
        aws_secret_access_key: The key.
        aws_session_token: What belongs to a temporary key.
        client_config: Of botocore's settings ``connect_timeout``, ``read_timeout``, ``retries``,
            ``max_pool_connections``, ``s3`` (``addressing_style``) and ``signature_version``.
        transfer_config: Of boto3's settings ``multipart_threshold``, ``multipart_chunksize``,
            ``max_concurrency`` and ``use_threads``.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        region_name: str | None = None,
        endpoint_url: str | None = None,
        aws_access_key_id: str | None = None,
        aws_secret_access_key: str | None = None,
        aws_session_token: str | None = None,
        client_config: dict[str, Any] | None = None,
        transfer_config: dict[str, Any] | None = None,
    ) -> None:
        self.transfer_config = dict(transfer_config or {})
        self._parts = _parts(self.transfer_config)
        profile = _profile()
        self._endpoint = endpoint_url or _first_variable(
            "S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"
        )
        self._endpoint = self._endpoint or profile.get("endpoint_url")
        region = region_name or _first_variable("AWS_REGION", "AWS_DEFAULT_REGION")
        self._config: dict[str, Any] = {"region": region or profile.get("region") or "us-east-1"}
        if self._endpoint:
            self._config["endpoint"] = self._endpoint
        given = {
            "aws_access_key_id": aws_access_key_id,
            "aws_secret_access_key": aws_secret_access_key,
            "aws_session_token": aws_session_token,
        }
        keys = given if any(given.values()) else _keys_of(profile)
        if keys is not None:
            self._config["credential_provider"] = _always(keys)
        elif not _in_environment() and any(name in profile for name in _NEED_BOTO3):
            self._config["credential_provider"] = _signed_in()
        self._client_config = dict(client_config or {})
        driver = self._connect(bucket.strip("/"))
        super().__init__(driver, "s3", bucket, prefix, keys)

    def _connect(self, bucket: str) -> ObstoreDriver:
        from obstore.store import S3Store

        options, store_options = _client_options(self._client_config, self._endpoint)
        store = built(S3Store, bucket, **options, **store_options, **self._config)
        writer = store
        if acl := os.environ.get("S3_CANNED_ACL"):
            # A client of its own: the header is signed in uploads only, and S3 refuses others.
            options["client_options"]["default_headers"] = {"x-amz-acl": acl}
            writer = built(S3Store, bucket, **options, **store_options, **self._config)
        return ObstoreDriver(store, writer, **self._parts)

    def _mended(self, message: str) -> bool:
        """Connects to the bucket's own region after a redirect, which says that it is another."""
        if "redirect" not in message or self._endpoint:
            return False
        region = _region_of(self.bucket)
        if region is None or region == self._config["region"]:
            return False
        self._config["region"] = region
        self._driver = self._connect(self.bucket)
        return True

    def _extra(self, kwargs: Mapping[str, Any]) -> Any:
        if set(kwargs) - {"ExtraArgs"}:
            raise ValueError(
                f"S3ObjectStore.upload_object takes ExtraArgs, but not "
                f"{sorted(set(kwargs) - {'ExtraArgs'})}."
            )
        extra = dict(kwargs.get("ExtraArgs") or {})
        attributes = dict(extra.pop("Metadata", {}))
        for name, header in _ATTRIBUTES.items():
            if name in extra:
                attributes[header] = extra.pop(name)
        if extra:
            raise ValueError(
                f"ExtraArgs {sorted(extra)} cannot be sent; available: Metadata, "
                f"{', '.join(_ATTRIBUTES)}. An ACL is set by S3_CANNED_ACL, encryption by "
                "AWS_SERVER_SIDE_ENCRYPTION and AWS_SSE_KMS_KEY_ID."
            )
        return {"attributes": attributes} if attributes else {}


def _first_variable(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _profile() -> dict[str, str]:
    """Returns the settings of ``AWS_PROFILE``, or the default one, from the AWS tools' files."""
    home = Path.home() / ".aws"
    credentials, config = configparser.RawConfigParser(), configparser.RawConfigParser()
    credentials.read(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"))
    config.read(os.environ.get("AWS_CONFIG_FILE", home / "config"))
    name = os.environ.get("AWS_PROFILE")
    found: dict[str, str] = {}
    for file, section in (
        (config, "default" if name in (None, "default") else f"profile {name}"),
        (credentials, name or "default"),
    ):
        if file.has_section(section):
            found.update(file.items(section))
    if name is not None and not found:
        raise ValueError(f"AWS_PROFILE={name} is in neither ~/.aws/credentials nor ~/.aws/config.")
    return found


def _in_environment() -> bool:
    """Tells whether the environment says how to sign in; obstore knows its variables itself."""
    return any(os.environ.get(name) for name in _CREDENTIAL_VARIABLES)


def _keys_of(profile: Mapping[str, str]) -> Mapping[str, str] | None:
    return profile if "aws_access_key_id" in profile and not _in_environment() else None


def _always(keys: Mapping[str, str | None]) -> Callable[[], dict[str, Any]]:
    """Returns what gives obstore these keys, and keeps it from adding the environment's token."""
    name, secret = keys.get("aws_access_key_id"), keys.get("aws_secret_access_key")
    if not name or not secret:
        raise ValueError("S3 needs aws_access_key_id and aws_secret_access_key, or none of them.")
    credential = {
        "access_key_id": name,
        "secret_access_key": secret,
        "token": keys.get("aws_session_token"),
        "expires_at": None,
    }
    return lambda: credential


def _signed_in() -> Callable[[], dict[str, Any]]:
    """Returns what gives obstore the keys that boto3 gets for the profile, and renews."""
    try:
        from boto3 import Session
    except ImportError as error:
        raise MissingConditionalImportError("s3", "boto3") from error
    credentials = Session().get_credentials()

    def current() -> dict[str, Any]:
        if credentials is None:
            raise ValueError("boto3 finds no AWS credentials; sign in, or check AWS_PROFILE.")
        keys = credentials.get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(timezone.utc) + _ASK_AGAIN,
        }

    return current


def _region_of(bucket: str) -> str | None:
    """Asks AWS where a bucket is; it tells everybody, with a refusal too."""
    connection = http.client.HTTPSConnection("s3.amazonaws.com", timeout=10)
    try:
        connection.request("HEAD", f"/{bucket}")
        return connection.getresponse().getheader("x-amz-bucket-region")
    except OSError:
        return None
    finally:
        connection.close()


def _client_options(
    settings: Mapping[str, Any], endpoint: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Translates botocore's settings into options of any obstore client, and of S3's."""
    left = dict(settings)
    retries = dict(left.pop("retries", {}))
    retries.pop("mode", None)  # there is one way, with pauses that grow
    tries = retries.pop("total_max_attempts", 1 + retries.pop("max_attempts", 7))
    options = obstore_options(endpoint, num_tries=tries)
    client = options["client_options"]
    for name in ("connect_timeout", "read_timeout"):
        if name in left:
            client[name] = timedelta(seconds=left.pop(name))
    if "max_pool_connections" in left:
        client["pool_max_idle_per_host"] = str(left.pop("max_pool_connections"))
    s3 = dict(left.pop("s3", {}))
    style = s3.pop("addressing_style", "auto")
    store: dict[str, Any] = {"virtual_hosted_style_request": True} if style == "virtual" else {}
    signature = left.pop("signature_version", "s3v4")
    if signature not in ("s3v4", "v4"):
        left["signature_version"] = signature
    if left or s3 or retries:
        raise ValueError(
            f"client_config has {sorted({*left, *s3, *retries})}, which S3ObjectStore cannot set. "
            "Available: connect_timeout, read_timeout, retries, max_pool_connections, "
            "s3.addressing_style; AWS_SKIP_SIGNATURE=true leaves requests unsigned."
        )
    return options, store


def _parts(settings: Mapping[str, Any]) -> dict[str, int]:
    """Translates boto3's settings of transfers into the driver's."""
    names = {
        "multipart_chunksize": "part_bytes",
        "multipart_threshold": "single_bytes",
        "max_concurrency": "concurrency",
    }
    left = dict(settings)
    parts = {names[name]: left.pop(name) for name in names if name in left}
    if not left.pop("use_threads", True):
        parts["concurrency"] = 1
    if left:
        raise ValueError(
            f"transfer_config has {sorted(left)}, which S3ObjectStore cannot set. Available: "
            f"{', '.join(names)}, use_threads."
        )
    return parts
