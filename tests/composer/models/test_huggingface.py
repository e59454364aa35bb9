"""The wrapper against transformers itself, on tiny models with random weights."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F

from composer.metrics import LanguageCrossEntropy, LanguagePerplexity, MaskedAccuracy
from composer.models import HuggingFaceModel

CAUSAL = ["gpt2", "llama"]


@pytest.mark.parametrize("kind", CAUSAL)
def test_forward_and_loss_are_transformers(kind, make_model, make_tokenizer, text_batch):
    hf = make_model(kind)
    model = HuggingFaceModel(hf, make_tokenizer())
    outputs = model({**text_batch, "not_an_argument": 1})
    expected = hf(**text_batch)
    torch.testing.assert_close(outputs["logits"], expected.logits)
    torch.testing.assert_close(model.loss(outputs, text_batch), expected.loss)
    assert model.shift_labels is True
    assert {"input_ids", "attention_mask", "labels"} <= model.model_forward_args


def test_tuple_outputs_are_understood(make_model, text_batch, monkeypatch):
    # Many models of transformers 5 fail with return_dict=False, but remote code still does it.
    hf = make_model("llama")
    model = HuggingFaceModel(hf, use_logits=True)
    forward = hf.forward
    monkeypatch.setattr(hf, "forward", lambda **kwargs: forward(**kwargs).to_tuple())
    outputs = model(text_batch)
    loss, logits = outputs[:2]
    assert model.loss(outputs, text_batch) is loss
    assert model.eval_forward(text_batch, outputs) is logits
    torch.testing.assert_close(model.eval_forward(text_batch), logits)


@pytest.mark.parametrize("batch", [[1], (torch.ones(1),), torch.ones(1)])
def test_only_mappings_are_batches(batch, make_model):
    with pytest.raises(ValueError, match="Unexpected batch type"):
        HuggingFaceModel(make_model("gpt2"))(batch)


def test_a_missing_loss_is_explained(make_model, text_batch):
    model = HuggingFaceModel(make_model("gpt2"))
    del text_batch["labels"]
    with pytest.raises(ValueError, match="no labels"):
        model.loss(model(text_batch), text_batch)
    with pytest.raises(ValueError, match="no labels"):
        model.num_loss_tokens(text_batch)


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("use_logits", [True, False])
def test_B10_train_metric_is_the_loss(kind, use_logits, make_model, text_batch):
    metrics = [LanguageCrossEntropy(), LanguagePerplexity()]
    model = HuggingFaceModel(make_model(kind), use_logits=use_logits, metrics=metrics)
    untouched = copy.deepcopy(text_batch)
    outputs = model(text_batch)
    evaluated = model.eval_forward(text_batch, outputs)
    for metric in model.get_metrics(is_train=True).values():
        assert model.update_metric(text_batch, evaluated, metric) == {}
    loss = model.loss(outputs, text_batch)
    torch.testing.assert_close(metrics[0].compute(), loss)
    torch.testing.assert_close(metrics[1].compute(), loss.exp())
    # B15: neither labels nor anything else of the batch was changed.
    torch.testing.assert_close(text_batch, untouched)


@pytest.mark.parametrize("kind", CAUSAL)
def test_B07_evaluation_is_per_token_whatever_the_batch(kind, make_model, text_batch):
    model = HuggingFaceModel(
        make_model(kind), use_logits=True, eval_metrics=[LanguageCrossEntropy(), MaskedAccuracy()]
    )
    results = []
    for size in (1, 2, 3):
        metrics = copy.deepcopy(model.get_metrics(is_train=False))
        for start in range(0, 3, size):
            part = {key: value[start : start + size] for key, value in text_batch.items()}
            evaluated = model.eval_forward(part)
            for metric in metrics.values():
                model.update_metric(part, evaluated, metric)
        results.append([metric.compute() for metric in metrics.values()])
    with torch.no_grad():
        logits = model(text_batch)["logits"][:, :-1]
    labels = text_batch["labels"][:, 1:]
    nll = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    for cross_entropy, accuracy in results:
        torch.testing.assert_close(cross_entropy, nll / (labels != -100).sum(), atol=1e-5, rtol=0)
        torch.testing.assert_close(accuracy, results[0][1])


@pytest.mark.parametrize("kind", CAUSAL)
def test_num_loss_tokens_is_the_denominator_of_the_loss(kind, make_model, text_batch):
    model = HuggingFaceModel(make_model(kind))
    outputs = model(text_batch)
    # 5 of row 0 (its prompt's last place predicts a target), 4 of row 1, 2 of row 2.
    assert model.num_loss_tokens(text_batch) == 11
    labels = text_batch["labels"][:, 1:]
    nll = F.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(model.loss(outputs, text_batch), nll / 11)


def test_num_loss_tokens_of_other_models(make_model, text_batch):
    masked = HuggingFaceModel(make_model("bert"))
    assert masked.num_loss_tokens(text_batch) == int((text_batch["labels"] != -100).sum())
    t5 = HuggingFaceModel(make_model("t5"))
    assert t5.num_loss_tokens(text_batch) == masked.num_loss_tokens(text_batch)
    assert t5.shift_labels is False
    rows = HuggingFaceModel(make_model("bert", head="BertForSequenceClassification"))
    assert rows.num_loss_tokens is None


def test_encoder_decoder_evaluates_without_labels(make_model, text_batch):
    hf = make_model("t5")
    model = HuggingFaceModel(hf, use_logits=True, metrics=[LanguageCrossEntropy()])
    logits = model.eval_forward(text_batch)
    torch.testing.assert_close(logits, hf(**text_batch).logits)
    metric = model.get_metrics(is_train=False)["LanguageCrossEntropy"]
    model.update_metric(text_batch, logits, metric)
    torch.testing.assert_close(metric.compute(), hf(**text_batch).loss)
    hf.prepare_decoder_input_ids_from_labels = None
    with pytest.raises(RuntimeError, match="decoder_input_ids"):
        model.eval_forward(text_batch)


def test_regression_logits_lose_their_last_dimension(make_model, text_batch):
    hf = make_model("bert", head="BertForSequenceClassification", num_labels=1)
    model = HuggingFaceModel(hf, use_logits=True)
    text_batch["labels"] = torch.randn(3)
    assert model.eval_forward(text_batch).shape == (3,)
    torch.testing.assert_close(model.labels, text_batch["labels"])


def test_metrics_that_need_the_batch_get_it(make_model, text_batch):
    seen = {}

    class Asking:
        needs_batch = True
        device = torch.device("cpu")

        def update(self, **kwargs):
            seen.update(kwargs)
            return {"correct": [1, 0, 1]}

    text_batch["mode"] = "icl_task"
    model = HuggingFaceModel(make_model("gpt2"), shift_labels=False)
    outputs = model.eval_forward(text_batch)
    assert outputs.shape == (3, 8, 64)
    result = model.update_metric(text_batch, outputs, Asking())
    assert result == {"correct": [1, 0, 1], "metric_name": ["Asking"] * 3}
    assert seen["batch"] is text_batch
    torch.testing.assert_close(seen["labels"][:, :-1], text_batch["labels"][:, 1:])
    assert bool((seen["labels"][:, -1] == -100).all())


def test_metrics_of_training_and_evaluation(make_model):
    train, evaluation = LanguageCrossEntropy(), LanguagePerplexity()
    both = HuggingFaceModel(make_model("gpt2"), metrics=[train])
    assert both.get_metrics(is_train=True) == {"LanguageCrossEntropy": train}
    assert both.get_metrics()["LanguageCrossEntropy"] is not train
    apart = HuggingFaceModel(make_model("gpt2"), metrics=[train], eval_metrics=[evaluation])
    assert apart.get_metrics() == {"LanguagePerplexity": evaluation}
    assert HuggingFaceModel(make_model("gpt2")).get_metrics(is_train=True) == {}


def test_warnings_are_logged(make_model, make_tokenizer, caplog):
    HuggingFaceModel(make_model("gpt2"), make_tokenizer())
    assert caplog.text == ""
    HuggingFaceModel(make_model("gpt2"), shift_labels=False)
    assert "tokenizer was not provided" in caplog.text
    assert "causal language model" in caplog.text


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("tied", [True, False])
def test_B89_vocabularies(kind, tied, make_model, make_tokenizer):
    larger = make_model(kind, vocab_size=128, tie_word_embeddings=tied)
    HuggingFaceModel(larger, make_tokenizer(100), allow_embedding_resizing=True)
    assert larger.get_input_embeddings().weight.shape[0] == 128 == larger.config.vocab_size

    with pytest.raises(ValueError, match="allow_embedding_resizing=True"):
        HuggingFaceModel(make_model(kind, vocab_size=100), make_tokenizer(128))

    smaller = make_model(kind, vocab_size=100, tie_word_embeddings=tied)
    before = smaller.get_input_embeddings().weight.detach().clone()
    HuggingFaceModel(smaller, make_tokenizer(128), allow_embedding_resizing=True)
    ends = smaller.get_input_embeddings().weight, smaller.get_output_embeddings().weight
    assert [end.shape[0] for end in ends] == [128, 128] and smaller.config.vocab_size == 128
    assert (ends[0] is ends[1]) is tied
    torch.testing.assert_close(ends[0][:100], before)


@pytest.mark.parametrize("kind", CAUSAL)
def test_generate_is_transformers(kind, make_model, make_tokenizer):
    hf, tokenizer = make_model(kind), make_tokenizer()
    model = HuggingFaceModel(hf, tokenizer)
    ids = torch.tensor([[1, 1, 5, 6], [7, 8, 9, 10]])
    mask = (ids != 1).long()
    settings = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False}
    torch.testing.assert_close(
        model.generate(ids, **settings), hf.generate(ids, pad_token_id=1, **settings)
    )
    # B82: padding on the left changes nothing.
    alone = model.generate(ids[:1, 2:], **{**settings, "attention_mask": mask[:1, 2:]})
    torch.testing.assert_close(model.generate(ids, **settings)[0, 2:], alone[0])
    with pytest.raises(ValueError, match="padded on the right"):
        model.generate(ids.flip(1), **{**settings, "attention_mask": mask.flip(1)})


def test_generate_mode_gives_continuations(make_model, make_tokenizer):
    tokenizer = make_tokenizer(padding_side="left")
    model = HuggingFaceModel(make_model("gpt2"), tokenizer)
    inputs = tokenizer(["w3 w4 w5", "w6"], return_tensors="pt", padding=True)
    batch = {
        "mode": "generate",
        "input_ids": inputs["input_ids"],
        "attention_mask": inputs["attention_mask"],
        "labels": [["w1"], ["w2"]],
        "generation_kwargs": {"max_new_tokens": 3, "do_sample": False, "min_new_tokens": 3},
    }
    texts = model.eval_forward(batch)
    tokens = model.generate(
        batch["input_ids"], attention_mask=batch["attention_mask"], **batch["generation_kwargs"]
    )
    # ' a' is one (unknown) token here, so nothing is put in front.
    assert texts == tokenizer.batch_decode(tokens[:, 3:], skip_special_tokens=True)
    assert model.labels == [["w1"], ["w2"]]
    model.tokenizer = None
    with pytest.raises(ValueError, match="tokenizer is needed"):
        model.eval_forward(batch)


def test_survives_copying_and_pickling(make_model, make_tokenizer, text_batch):
    model = HuggingFaceModel(make_model("gpt2"), make_tokenizer(), metrics=[MaskedAccuracy()])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(text_batch).loss, model(text_batch).loss)
        assert other.num_loss_tokens(text_batch) == model.num_loss_tokens(text_batch)
