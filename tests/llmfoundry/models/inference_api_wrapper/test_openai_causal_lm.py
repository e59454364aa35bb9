"""A model behind a server scores as the same model in this process; the network may fail."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchmetrics import Metric

from composer import Evaluator, Trainer
from composer.core.data_spec import DataSpec
from composer.utils import dist
from llmfoundry.builders.models import build_composer_model
from llmfoundry.models import OpenAICausalLMEvalWrapper, OpenAIChatAPIEvalWrapper
from tests.launch import run_ranks
from tests.llmfoundry.models.hf.tiny import build
from tests.llmfoundry.models.inference_api_wrapper.api_server import TinyServer, serving
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(pad=True)
ROWS = [("the cat sat on", " the mat"), ("it was the best of times,", " it was"), ("a b c", " d")]


class Likelihood(Metric):
    """Mean log-likelihood of continuations and the share that greedy decoding writes."""

    needs_batch = True
    score: torch.Tensor
    right: torch.Tensor
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("score", "right", "total"):
            self.add_state(name, default=torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, batch: Any, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        for row, indices in enumerate(batch["continuation_indices"]):
            logits, wanted = outputs[row, indices - 1], labels[row, indices - 1]
            self.score -= torch.nn.functional.cross_entropy(logits, wanted, reduction="sum")
            self.right += float(torch.equal(logits.argmax(-1), wanted))
            self.total += 1

    def compute(self) -> torch.Tensor:
        return self.score / self.total


def collate(rows: list[tuple[str, str]]) -> dict[str, Any]:
    """Rows as the in-context-learning tasks make them, padded on the right."""
    parts = [[TOKENIZER(text)["input_ids"] for text in row] for row in rows]
    width = max(len(a) + len(b) for a, b in parts) + 2
    pad = TOKENIZER.pad_token_id
    ids = torch.tensor([a + b + [pad] * (width - len(a) - len(b)) for a, b in parts])
    indices = [torch.arange(len(a), len(a) + len(b)) for a, b in parts]
    return {
        "input_ids": ids,
        "labels": ids.clone(),
        "attention_mask": ids != pad,
        "continuation_indices": indices,
        "mode": "icl_task",
    }


def local_scores(model: Any, batch: dict[str, Any]) -> list[torch.Tensor]:
    """The log-probabilities of each continuation's tokens in this process."""
    with torch.no_grad():
        rows = model(batch["input_ids"]).logits.log_softmax(-1)
    return [
        rows[row, indices - 1].gather(1, batch["input_ids"][row, indices, None])[:, 0]
        for row, indices in enumerate(batch["continuation_indices"])
    ]


def given_scores(outputs: torch.Tensor, batch: dict[str, Any]) -> list[torch.Tensor]:
    """The same, of outputs as metrics read them."""
    return [
        outputs[row, indices - 1]
        .log_softmax(-1)
        .gather(1, batch["input_ids"][row, indices, None])[:, 0]
        for row, indices in enumerate(batch["continuation_indices"])
    ]


@pytest.fixture(scope="module")
def tiny() -> Any:
    return build("llama", vocab_size=len(TOKENIZER))


@pytest.fixture
def server(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[TinyServer]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(tiny, TOKENIZER) as one:
        yield one


def causal(server: TinyServer, **settings: Any) -> OpenAICausalLMEvalWrapper:
    return OpenAICausalLMEvalWrapper(
        {"version": "tiny", "base_url": server.url, **settings}, TOKENIZER
    )


def test_scores_are_those_of_the_model_in_one_request_a_row(server: TinyServer, tiny: Any) -> None:
    batch = collate(ROWS)
    outputs = causal(server).eval_forward(batch)
    assert len(server.requests) == len(ROWS)
    for row, indices in enumerate(batch["continuation_indices"]):
        whole = outputs[row, indices - 1].logsumexp(-1)
        torch.testing.assert_close(whole, torch.zeros(len(indices)), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        given_scores(outputs, batch), local_scores(tiny, batch), rtol=1e-5, atol=1e-5
    )
    local = tiny(batch["input_ids"]).logits
    for row, indices in enumerate(batch["continuation_indices"]):  # whatever the next token is
        greedy = local[row, indices - 1].argmax(-1) == batch["input_ids"][row, indices]
        found = outputs[row, indices - 1].argmax(-1) == batch["input_ids"][row, indices]
        assert torch.equal(found, greedy)
    # Elsewhere they say the tokens that follow.
    first = int(batch["continuation_indices"][0][0])
    assert torch.equal(outputs[0, : first - 1].argmax(-1), batch["input_ids"][0, 1:first])
    assert int(outputs[0, -1].argmax()) == TOKENIZER.pad_token_id


def test_the_likeliest_token_may_be_a_piece_of_a_character(server: TinyServer, tiny: Any) -> None:
    for token in range(len(TOKENIZER)):
        likely = int(tiny(torch.tensor([[token]])).logits[0, -1].argmax())
        if "\ufffd" in TOKENIZER.decode([likely]):
            assert int(causal(server).score([token], [likely]).argmax()) == likely
            return
    raise AssertionError("no such token")


@pytest.mark.parametrize("way", ["is not known", "is refused"])
def test_without_echo_each_token_takes_a_request(way: str, server: TinyServer, tiny: Any) -> None:
    server.echoes, server.refuses_echo = False, way == "is refused"
    model, batch = causal(server), collate(ROWS)
    for row, indices in enumerate(batch["continuation_indices"]):  # some tokens that are likely
        likely = tiny(batch["input_ids"]).logits[row, indices[0] - 1].topk(3).indices[row]
        batch["input_ids"][row, indices[0]] = likely
    outputs = model.eval_forward(batch)
    n_tokens = sum(map(len, batch["continuation_indices"]))
    assert len(server.requests) == 1 + n_tokens
    model.eval_forward(batch)
    assert len(server.requests) == 1 + 2 * n_tokens  # echo is asked for once
    with torch.no_grad():
        local = tiny(batch["input_ids"]).logits.log_softmax(-1)
    checked = 0
    for row, indices in enumerate(batch["continuation_indices"]):
        found = outputs[row, indices - 1]
        torch.testing.assert_close(found.logsumexp(-1), torch.zeros(len(indices)))
        for vector, own, target in zip(
            found, local[row, indices - 1], batch["input_ids"][row, indices], strict=True
        ):
            top = own.topk(5)
            assert float(vector.max()) == pytest.approx(float(top.values[0]), abs=1e-5)
            if target in top.indices:
                checked += 1
                assert float(vector[target]) == pytest.approx(float(own[target]), abs=1e-5)
            else:
                assert float(vector[target]) < float(top.values[-1])
    assert checked >= 2


class _Answer:
    """The log-probabilities that a server gave."""

    def __init__(self, **top: float) -> None:
        self.top_logprobs = [{text.replace("_", " "): value for text, value in top.items()}]


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        ({"_cat": -1.0, "s": -2.0}, -1.0),  # as it stands in the text
        ({"cat": -1.0, "s": -2.0}, -1.0),  # decoded alone
        ({"cat": -1.0, "_cat": -1.5}, -1.5),
        ({"cat": -1.0, "_s": -1.5}, None),  # that is the token without a space
    ],
)
def test_a_token_that_decodes_without_its_space_is_found(
    top: dict[str, float], expected: float | None, server: TinyServer
) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "\u2581the", "\u2581cat", "cat", "s", "\u2581s"]
    vocabulary = {word: index for index, word in enumerate(words)}
    inner = Tokenizer(models.WordLevel(vocabulary, "<s>"))  # pyright: ignore[reportCallIssue]
    inner.pre_tokenizer = pre_tokenizers.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
    inner.decoder = decoders.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<s>")
    assert tokenizer.decode([2]) == "cat" and tokenizer.decode([1, 2]) == "the cat"
    model = OpenAICausalLMEvalWrapper({"version": "tiny", "base_url": server.url}, tokenizer)
    model._complete = lambda prompt, **settings: _Answer(**top)
    row = model._score_next([1], 2)
    torch.testing.assert_close(row.exp().sum(), torch.tensor(1.0))
    if expected is None:
        assert float(row[2]) < -1.5
    else:
        assert float(row[2]) == pytest.approx(expected)


def test_a_refusal_that_has_another_cause_leaves_echo_on(server: TinyServer) -> None:
    import openai

    model, batch = causal(server), collate(ROWS[:1])
    server.faults = [400, 400]
    with pytest.raises(openai.BadRequestError):
        model.eval_forward(batch)
    model.eval_forward(batch)
    assert len(server.requests) == 3


@pytest.mark.parametrize("faults", [[429, 500, 503], ["hang", 429]])
def test_a_busy_server_is_asked_again(faults: list[Any], server: TinyServer, tiny: Any) -> None:
    server.faults = list(faults)
    model, batch = causal(server), collate(ROWS[:1])
    model.client = model.client.with_options(timeout=0.5)
    outputs = model.eval_forward(batch)
    assert len(server.requests) == 1 + len(faults)
    torch.testing.assert_close(
        given_scores(outputs, batch), local_scores(tiny, batch), rtol=1e-5, atol=1e-5
    )


def test_what_another_try_does_not_mend_is_an_error(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import openai

    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    model, batch = causal(server), collate(ROWS[:1])
    server.faults = [401]
    with pytest.raises(openai.AuthenticationError) as caught:
        model.eval_forward(batch)
    assert len(server.requests) == 1 and server.requests[0][2] == "Bearer sk-very-secret"
    assert "secret" not in f"{caught.value!r} {model!r} {model.settings} {model.client!r}"
    server.gives_logprobs = False
    with pytest.raises(ValueError, match="'tiny' gives no log-probabilities"):
        model.eval_forward(batch)


def test_chat_is_right_if_it_writes_the_continuation(server: TinyServer) -> None:
    model = OpenAIChatAPIEvalWrapper(None, TOKENIZER, version="tiny", base_url=server.url)
    batch, metric = collate(ROWS), Likelihood()
    outputs = model.eval_forward(batch)
    assert model.update_metric(batch, outputs, metric) == {}
    assert (float(metric.right), float(metric.total)) == (1.0, 3.0)
    path, asked, _ = server.requests[0]
    assert path == "/v1/chat/completions" and asked["temperature"] == 0
    assert [each["role"] for each in asked["messages"]] == ["system", "user"]
    assert asked["messages"][0]["content"] == "Please complete the following text: "
    assert asked["messages"][1]["content"] == ROWS[0][0]
    assert asked["max_tokens"] == len(TOKENIZER("the mat")["input_ids"])
    model = OpenAIChatAPIEvalWrapper(
        {"name": "tiny", "base_url": server.url, "system_role_prompt": "Go on."}, TOKENIZER
    )
    server.chat_answer = ""
    outputs = model.eval_forward(batch)
    assert server.requests[-1][1]["messages"][0]["content"] == "Go on."
    places = model.rebatch(batch)["continuation_indices"][0]
    assert set(outputs[0, places - 1].argmax(-1).tolist()) == {TOKENIZER.pad_token_id}


def _evaluated(url: str) -> torch.Tensor:
    """The mean likelihood that a recipe's model has by the trainer."""
    warnings.filterwarnings("ignore", message="No optimizer was specified")
    model: Any = build_composer_model(
        "openai_causal_lm", {"version": "tiny", "base_url": url}, TOKENIZER
    )
    model.eval_metrics = {"Likelihood": Likelihood()}
    rows: Any = ROWS + ROWS[:1]
    sampler = dist.get_sampler(rows, shuffle=False)
    loader = DataLoader(rows, batch_size=2, collate_fn=collate, sampler=sampler)
    spec = DataSpec(loader, get_num_samples_in_batch=lambda batch: len(batch["input_ids"]))
    trainer = Trainer(
        model=model,
        eval_dataloader=Evaluator(label="task", dataloader=spec, metric_names=["Likelihood"]),
        device="cpu",
        progress_bar=False,
    )
    trainer.eval()
    return trainer.state.eval_metrics["task"]["Likelihood"].compute()


def test_the_trainer_evaluates_on_any_number_of_ranks(server: TinyServer, tiny: Any) -> None:
    sums = [each.sum() for each in local_scores(tiny, collate(ROWS + ROWS[:1]))]
    expected = torch.stack(sums).mean()
    for found in [_evaluated(server.url), *run_ranks(_evaluated, 2, server.url)]:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"base_url": "http://x"}, "version is missing"),
        ({"version": "x", "base_url": "http://x", "base_ulr": 1}, r"has no \['base_ulr'\]"),
        ({"version": "x", "base_url": "http://x", "local": True}, r"has no \['local'\]"),
        ({"version": "x"}, "No OPENAI_API_KEY"),
    ],
)
def test_what_does_not_fit_is_refused(
    settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for given in ({"om_model_config": settings}, settings):
        with pytest.raises(ValueError, match=words):
            OpenAICausalLMEvalWrapper(tokenizer=TOKENIZER, **given)


def test_other_batches_and_uses_are_refused(server: TinyServer) -> None:
    model, batch = causal(server), collate(ROWS)
    with pytest.raises(NotImplementedError, match="mode 'generate'"):
        model.eval_forward({**batch, "mode": "generate"})
    with pytest.raises(NotImplementedError, match="looks at whole rows"):
        model.update_metric(batch, None, torch.nn.Identity())
    with pytest.raises(NotImplementedError, match="cannot be trained"):
        model.loss(None, batch)
    with pytest.raises(NotImplementedError, match="use eval_forward"):
        model(batch)
    alone = {**batch, "continuation_indices": [torch.arange(3)] * 3}
    with pytest.raises(ValueError, match="Row 0 is all continuation"):
        model.eval_forward(alone)
    assert model.get_metrics(is_train=True) == {}
