"""A server of one's own is named, or waited for."""

from typing import Any

import pytest

from llmfoundry.models import FMAPICasualLMEvalWrapper, FMAPIChatAPIEvalWrapper
from llmfoundry.models.inference_api_wrapper import fmapi
from tests.llmfoundry.models.inference_api_wrapper.api_server import serving
from tests.llmfoundry.tiny_tokenizer import train_tokenizer


def test_a_local_server_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(None, None) as server:
        monkeypatch.setenv("MOSAICML_MODEL_ENDPOINT", server.url)
        for kind in (FMAPICasualLMEvalWrapper, FMAPIChatAPIEvalWrapper):
            model = kind({"name": "tiny", "local": True}, train_tokenizer())
            assert str(model.client.base_url).rstrip("/") == server.url
    with pytest.raises(TimeoutError, match="No server answered at .*/ping in 0.05 s"):
        fmapi.wait_for_server(server.url, wait_seconds=0.05, ping_seconds=0.01)


@pytest.mark.parametrize("settings", [{}, {"base_url": "http://x", "local": True}])
def test_one_of_both_is_needed(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Set one of base_url"):
        FMAPICasualLMEvalWrapper({"name": "tiny", **settings}, train_tokenizer())
