"""Downloads of models: from the hub, from a web server, from a registry through oras."""

import fnmatch
import logging
import os
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urljoin

from omegaconf import OmegaConf

from composer.utils.file_helpers import get_web_file
from composer.utils.object_store.object_store import ObjectStoreTransientError
from composer.utils.object_store.redaction import without_secrets
from composer.utils.retrying import retry

__all__ = [
    "download_from_hf_hub",
    "download_from_http_fileserver",
    "download_from_oras",
    "wanted_files",
]

log = logging.getLogger(__name__)

TOKENIZER_FILES = (
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "vocab.json",
    "vocab.txt",
)
SAFETENSORS, PYTORCH = "model*.safetensors*", "pytorch_model*.bin*"
OTHER_FRAMEWORKS = ("*.ckpt", "*.h5", "*.msgpack")
NUM_ATTEMPTS = 3
FIRST_PAUSE_SECONDS = 1.0


def download_from_hf_hub(
    model: str,
    save_dir: str,
    prefer_safetensors: bool = True,
    tokenizer_only: bool = False,
    token: str | None = None,
) -> None:
    """Downloads a model's repository on the hub, with its weights in one format.

    What is there already is not fetched again; trouble that may pass is tried three times.

    Args:
        model: The repository, such as ``gpt2`` or ``owner/name``.
        save_dir: The folder that gets its files.
        prefer_safetensors: Whether safetensors are taken where there are both formats, or
            ``pytorch_model*.bin``.
        tokenizer_only: Leaves out all but the tokenizer's files.
        token: A token of the hub; by default the one that is logged in.

    Raises:
        ValueError: The repository has no weights that PyTorch loads.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    transport_error = HfHubHTTPError.__bases__[0]  # of httpx or of httpx2

    @retry(
        (transport_error, ConnectionError, LocalEntryNotFoundError),
        num_attempts=NUM_ATTEMPTS,
        initial_backoff=FIRST_PAUSE_SECONDS,
    )
    def fetch() -> Exception | None:
        try:
            info = HfApi(token=token).model_info(model)
            files = [each.rfilename for each in info.siblings or []]
            patterns = wanted_files(model, files, prefer_safetensors, tokenizer_only)
            snapshot_download(model, revision=info.sha, local_dir=save_dir, token=token, **patterns)
        except HfHubHTTPError as error:
            if error.response.status_code >= 500 or error.response.status_code == 429:
                raise
            return error  # such as a wrong name, which is not tried again
        return None

    refusal = fetch()
    if refusal is not None:
        raise refusal


def wanted_files(
    model: str, files: list[str], prefer_safetensors: bool = True, tokenizer_only: bool = False
) -> dict[str, Any]:
    """Returns which of a repository's files to download, as arguments of ``snapshot_download``.

    Args:
        model: The repository's name, for errors.
        files: The names of all its files.
        prefer_safetensors: As for :func:`download_from_hf_hub`.
        tokenizer_only: Likewise.

    Raises:
        ValueError: It has no weights that PyTorch loads.
    """
    if tokenizer_only:
        return {"allow_patterns": list(TOKENIZER_FILES)}
    formats = (SAFETENSORS, PYTORCH) if prefer_safetensors else (PYTORCH, SAFETENSORS)
    found = [each for each in formats if fnmatch.filter(files, each)]
    if not found:
        raise ValueError(
            f"{model} has no weights that PyTorch loads: neither {SAFETENSORS} nor {PYTORCH} is "
            f"among {sorted(files)}."
        )
    return {"ignore_patterns": [*OTHER_FRAMEWORKS, *found[1:]]}


def download_from_http_fileserver(
    url: str, save_dir: str, ignore_cert: bool = False, tokenizer_only: bool = False
) -> None:
    """Downloads all files below a folder that a web server lists as a page of links.

    Args:
        url: The folder's address.
        save_dir: The folder that gets its files and folders.
        ignore_cert: Accepts any certificate.
        tokenizer_only: Leaves out all but the tokenizer's files.

    Raises:
        PermissionError: The server asks for a login.
        RuntimeError: The server did not answer as it should.
        ValueError: There is no such folder, or there is no file in it.
    """
    context = ssl._create_unverified_context() if ignore_cert else None
    root = url if url.endswith("/") else f"{url}/"
    count = 0
    for address, name in _files_below(root, root, context, set()):
        if not tokenizer_only or name in TOKENIZER_FILES:
            log.info("Downloading %s", name)
            _fetch(address, Path(save_dir, name), context)
            count += 1
    if not count:
        kind = "tokenizer file" if tokenizer_only else "file"
        raise ValueError(f"{without_secrets(root)} lists no {kind}; give the address of a folder.")


def _files_below(
    folder: str, root: str, context: ssl.SSLContext | None, seen: set[str]
) -> Iterator[tuple[str, str]]:
    """Yields address and name, relative to the root, of each file; links to elsewhere are none."""
    seen.add(folder)
    links = _Links()
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch, "page.html")
        _fetch(folder, page, context)
        links.feed(page.read_text(encoding="utf-8", errors="replace"))
    for link in links.found:
        address = urljoin(folder, link).partition("#")[0]
        name = unquote(address.removeprefix(root)).lstrip("/")
        below = address.startswith(root) and "?" not in address
        if not below or address in seen or ".." in PurePosixPath(name).parts:
            continue
        if address.endswith("/"):
            yield from _files_below(address, root, context, seen)
        else:
            seen.add(address)
            yield address, name


class _Links(HTMLParser):
    """Collects where the links of a page lead."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _fetch(address: str, target: Path, context: ssl.SSLContext | None) -> None:
    try:
        get_web_file(address, str(target), overwrite=True, context=context)
    except PermissionError:
        raise
    except FileNotFoundError as error:
        raise ValueError(str(error)) from error
    except (OSError, ObjectStoreTransientError) as error:
        advice = (
            " If you trust the server, pass ignore_cert." if "CERTIFICATE" in str(error) else ""
        )
        raise RuntimeError(f"{without_secrets(address)} cannot be read: {error}{advice}") from error


def download_from_oras(
    model: str,
    config_file: str,
    credentials_dir: str,
    save_dir: str,
    tokenizer_only: bool = False,
    concurrency: int = 10,
) -> None:
    """Downloads a model from an OCI registry through the ``oras`` program.

    Args:
        model: Its name in the configuration.
        config_file: A YAML file whose ``models`` and ``tokenizers`` give the path in the registry
            for each name.
        credentials_dir: A folder with the files ``registry``, ``username`` and ``password``.
        save_dir: The folder that gets the files.
        tokenizer_only: Downloads what ``tokenizers`` names.
        concurrency: How many files are downloaded at a time.

    Raises:
        FileNotFoundError: ``oras`` is not installed, or a file is not there.
        ValueError: The configuration does not name the model.
        subprocess.CalledProcessError: ``oras`` failed; its words come without the password.
    """
    if shutil.which("oras") is None:
        raise FileNotFoundError(
            "The program oras is not on the PATH: install it from https://oras.land/docs/installation."
        )
    kind = "tokenizers" if tokenizer_only else "models"
    config: Any = OmegaConf.load(config_file)
    paths = config.get(kind) or {}
    if model not in paths:
        raise ValueError(f"{config_file} has no {model!r} under {kind}; it has {sorted(paths)}.")
    registry, username, password = (
        Path(credentials_dir, name).read_text(encoding="utf-8").strip()
        for name in ("registry", "username", "password")
    )
    os.makedirs(save_dir, exist_ok=True)
    command = ["oras", "pull", f"{registry}/{paths[model]}", "--output", save_dir]
    command += ["--concurrency", str(concurrency), "--username", username, "--password-stdin"]
    # Through stdin: whoever may list processes sees their arguments.
    done = subprocess.run(command, input=password, capture_output=True, text=True)
    if done.returncode != 0:
        said = without_secrets(done.stdout + done.stderr, [password])
        log.error("%s", said)
        raise subprocess.CalledProcessError(done.returncode, command, stderr=said)
