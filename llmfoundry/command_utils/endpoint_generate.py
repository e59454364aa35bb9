"""Continues prompts by a model behind an HTTP endpoint."""

import collections
import contextlib
import csv
import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.utils.file_helpers import is_uri, maybe_create_object_store_from_uri, parse_uri
from composer.utils.retrying import retry
from llmfoundry.utils.prompt_files import load_prompts
from llmfoundry.utils.stores import uploaded_folder

__all__ = ["API_KEY_VARIABLE", "APIS", "EndpointError", "URL_VARIABLE", "endpoint_generate"]

URL_VARIABLE = "ENDPOINT_URL"
API_KEY_VARIABLE = "ENDPOINT_API_KEY"
APIS = ("mosaic", "openai")
OUTPUT_FILE = "output.csv"
CONCURRENCY = 64
"""Requests in flight at most; the rate limit is what usually binds."""
TIMEOUT_SECONDS = 600
ATTEMPTS = 6
BACKOFF_SECONDS = 1.0
"""The pause after a first failure; doubled after each further one."""


class EndpointError(RuntimeError):
    """The endpoint gave no continuation."""


class _TryAgainError(EndpointError):
    """The endpoint is busy or broken, and may not be so later."""


class RateLimit:
    """Lets no more than ``rate`` prompts through in any one second, from whatever thread.

    Args:
        rate: Prompts per second.
    """

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._lock = threading.Lock()
        self._sent: collections.deque[float] = collections.deque(maxlen=rate)

    def wait(self, n_prompts: int) -> None:
        """Returns when ``n_prompts`` more may be sent."""
        with self._lock:
            n_before = len(self._sent) + n_prompts - self.rate
            if n_before > 0:
                time.sleep(max(0.0, self._sent[n_before - 1] + 1 - time.monotonic()))
            self._sent.extend([time.monotonic()] * n_prompts)


@dataclass
class Endpoint:
    """Where continuations come from, and how they are asked for.

    Args:
        url: The full address.
        api: ``mosaic`` or ``openai``.
        settings: What the request holds beside the prompts.
        api_key: Sent along, if there is one.
        limit: Waited for before each request.
    """

    url: str
    api: str
    settings: dict[str, Any]
    api_key: str | None
    limit: RateLimit

    def complete(self, prompts: list[str]) -> list[str]:
        """Returns the continuations of a batch.

        Raises:
            EndpointError: It was refused, failed too often, or the answer is not understood.
        """
        again = retry(
            _TryAgainError,
            ATTEMPTS,
            initial_backoff=BACKOFF_SECONDS,
            max_jitter=BACKOFF_SECONDS / 2,
        )
        answer = again(self._post)(prompts)
        outputs = answer.get("choices", answer.get("outputs")) if isinstance(answer, dict) else None
        if not isinstance(outputs, list) or len(outputs) != len(prompts):
            raise EndpointError(
                f"{self.url} was sent {len(prompts)} prompts, and its answer holds no list of as "
                f"many `choices` or `outputs`: {str(answer)[:500]}"
            )
        if all(isinstance(output, dict) for output in outputs):
            outputs = sorted(outputs, key=lambda output: output.get("index", 0))
            outputs = [output.get("text") for output in outputs]
        if not all(isinstance(output, str) for output in outputs):
            raise EndpointError(
                f"{self.url} answered without a `text` in each choice. It must be an endpoint for "
                f"completions (as /v1/completions), not for chats: {str(answer)[:500]}"
            )
        return outputs

    def _post(self, prompts: list[str]) -> Any:
        self.limit.wait(len(prompts))
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            scheme = "Bearer " if self.api == "openai" else ""
            headers["Authorization"] = f"{scheme}{self.api_key}"
        body = json.dumps({"prompt": prompts, **self.settings}).encode()
        request = urllib.request.Request(self.url, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            text = (
                f"{self.url} answered {error.code}: {error.read()[:500].decode(errors='replace')}"
            )
            may_pass = error.code == 429 or error.code >= 500
            raise (_TryAgainError(text) if may_pass else EndpointError(text)) from error
        except json.JSONDecodeError as error:
            raise EndpointError(f"{self.url} answered with what is no JSON: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            raise _TryAgainError(f"{self.url} cannot be reached: {error}") from error


def _endpoint(args: Namespace) -> Endpoint:
    """Reads the flags and the environment."""
    url = args.endpoint or os.environ.get(URL_VARIABLE)
    if not url or not url.startswith(("http://", "https://")):
        raise ValueError(
            f"The endpoint must be an address with http:// or https://, but got {url!r}. Give it "
            f"with --endpoint or in the environment variable {URL_VARIABLE}."
        )
    for flag in ("batch_size", "rate_limit"):
        if getattr(args, flag) < 1:
            raise ValueError(f"{flag} must be at least 1, but got {getattr(args, flag)}.")
    if args.batch_size > args.rate_limit:
        raise ValueError(
            f"Batch size is {args.batch_size}, but the rate limit is {args.rate_limit} prompts per "
            "second, so no batch could be sent. Lower --batch-size or raise --rate-limit."
        )
    if (args.api == "openai") != (args.model is not None):
        raise ValueError(
            f"--api openai needs --model, and no other takes it; got {args.api=}, {args.model=}."
        )
    settings = {
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
    }
    if args.api == "openai":
        settings["model"] = args.model
        if args.top_k is None:  # no part of OpenAI's interface, though of others' like it
            del settings["top_k"]
    elif args.top_k is None:
        settings["top_k"] = 50
    api_key = os.environ.get(API_KEY_VARIABLE)
    return Endpoint(url, args.api, settings, api_key, RateLimit(args.rate_limit))


def _continue_all(endpoint: Endpoint, batches: list[list[str]], path: Path) -> None:
    """Writes batch, prompt and output of each prompt, in order, as they come.

    A batch that fails stops those that were not sent yet; all that are answered are written.
    """
    pool = ThreadPoolExecutor(max_workers=min(CONCURRENCY, len(batches)))
    answers = [pool.submit(endpoint.complete, batch) for batch in batches]
    n_written = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["batch", "prompt", "output"])

        def write(index: int) -> None:
            outputs = answers[index].result()
            rows.writerows([index, *pair] for pair in zip(batches[index], outputs, strict=True))
            file.flush()

        try:
            while n_written < len(batches):
                write(n_written)
                n_written += 1
                print(f"batch {n_written} of {len(batches)}", flush=True)
        except BaseException as error:
            # Who presses Ctrl-C does not wait for what is yet to be answered.
            pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
            for index, answer in enumerate(answers[n_written:], n_written):
                if answer.done() and not answer.cancelled() and answer.exception() is None:
                    write(index)
            raise
        pool.shutdown()


def _is_there(address: str) -> bool:
    if not is_uri(address):
        return Path(address).exists()
    store, name = maybe_create_object_store_from_uri(address), parse_uri(address)[2]
    assert store is not None
    with store, contextlib.suppress(FileNotFoundError):
        store.get_object_size(name)
        return True
    return False


def endpoint_generate(args: Namespace) -> None:
    """Runs the command: writes ``output.csv`` into the output folder, which may be in a store.

    Args:
        args: The flags of ``scripts/inference/endpoint_generate.py``.

    Raises:
        ValueError: Flags are out of range or contradict each other, or there is no prompt.
        FileExistsError: The output is there already.
        EndpointError: A batch failed for good; all that was answered is in the output.
    """
    endpoint = _endpoint(args)
    prompts = load_prompts(args.inputs, args.prompt_delimiter)
    if not prompts:
        raise ValueError(f"There is no prompt in {args.inputs}.")
    batches = [
        prompts[start : start + args.batch_size]
        for start in range(0, len(prompts), args.batch_size)
    ]
    output = f"{args.output_folder.rstrip('/')}/{OUTPUT_FILE}"
    if _is_there(output):
        raise FileExistsError(f"{output} exists. Give another --output-folder, or move it away.")
    failure = None
    there: Any = contextlib.nullcontext(Path(args.output_folder))
    if is_uri(args.output_folder):
        there = uploaded_folder(args.output_folder, last=())
    with there as folder:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _continue_all(endpoint, batches, folder / OUTPUT_FILE)
        except BaseException as error:  # what there is goes to the store all the same
            failure = error
    if failure is not None:
        print(f"What was answered is in {output}.")
        raise failure
    print(f"Wrote {len(prompts)} continuations to {output}.")
