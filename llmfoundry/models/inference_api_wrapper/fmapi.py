"""Models on a server of one's own with OpenAI's API, started beside the evaluation or before it."""

import os
import time
import urllib.error
import urllib.request

from llmfoundry.builders.declared_keys import declares_keys
from llmfoundry.models.inference_api_wrapper.openai_causal_lm import (
    SERVICE,
    OpenAICausalLMEvalWrapper,
    OpenAIChatAPIEvalWrapper,
    OpenAIEvalInterface,
)

__all__ = ["FMAPICasualLMEvalWrapper", "FMAPIChatAPIEvalWrapper", "FMAPIEvalInterface"]

LOCAL_URL = "http://0.0.0.0:8080/v2"
WAIT_SECONDS = 300.0
PING_SECONDS = 5.0


class FMAPIEvalInterface(OpenAIEvalInterface):
    """A model on a server at ``base_url``, or on one that is being started beside (``local``).

    Args:
        om_model_config: The settings as a mapping.
        tokenizer: The model's own tokenizer.
        **settings: ``version``; ``base_url``, or ``local: true`` for the server at
            ``MOSAICML_MODEL_ENDPOINT`` of the environment, by default port 8080 of this machine,
            which is waited for.

    Raises:
        ValueError: If there is neither ``base_url`` nor ``local``, or both.
        TimeoutError: If a local server does not answer in five minutes.
    """

    known_settings = OpenAIEvalInterface.known_settings | {"local"}

    def _find_base_url(self) -> str | None:
        url, local = self.settings.get("base_url"), self.settings.get("local", False)
        if (url is None) == (not local):
            raise ValueError(
                f"Set one of base_url (a server's address) and local: true; got base_url={url!r}, "
                f"local={local!r}."
            )
        if local:
            url = os.environ.get("MOSAICML_MODEL_ENDPOINT", LOCAL_URL)
            wait_for_server(url)
        return url


def wait_for_server(
    base_url: str, wait_seconds: float = WAIT_SECONDS, ping_seconds: float = PING_SECONDS
) -> None:
    """Returns when a server answers at ``base_url/ping``.

    Raises:
        TimeoutError: If it does not in time.
    """
    last: Exception | None = None
    end = time.monotonic() + wait_seconds
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{base_url.rstrip('/')}/ping", timeout=ping_seconds):
                return
        except (urllib.error.URLError, OSError) as error:
            last = error
            time.sleep(ping_seconds)
    raise TimeoutError(f"No server answered at {base_url}/ping in {wait_seconds:g} s: {last}.")


@declares_keys({"": {"version", "local"} | SERVICE})
class FMAPICasualLMEvalWrapper(FMAPIEvalInterface, OpenAICausalLMEvalWrapper):
    """A language model behind the completions API of such a server."""

    known_settings = FMAPIEvalInterface.known_settings


@declares_keys({"": {"version", "local", "system_role_prompt"} | SERVICE})
class FMAPIChatAPIEvalWrapper(FMAPIEvalInterface, OpenAIChatAPIEvalWrapper):
    """A model behind the chat API of such a server."""

    known_settings = FMAPIEvalInterface.known_settings | OpenAIChatAPIEvalWrapper.known_settings
