"""Generate lets a model write during training, and leaves no trace in it."""

import json

import pytest
import torch

from composer.callbacks.generate import Generate
from composer.core.callback import Callback
from composer.loggers.in_memory_logger import InMemoryLogger
from composer.models.huggingface import HuggingFaceModel
from tests.composer.callbacks.guarded import Line, batches, make_trainer, memory_of
from tests.composer.models.conftest import KINDS, make_model, make_tokenizer  # noqa: F401

PROMPTS = ["w3 w4 w5 w6", "w7"]


def text_batches(count):
    torch.manual_seed(4)
    rows = [torch.randint(3, 64, (4, 6)) for _ in range(count)]
    return [{"input_ids": r, "attention_mask": torch.ones_like(r), "labels": r} for r in rows]


@pytest.fixture
def make_run(make_model, make_tokenizer):  # noqa: F811
    def make(*callbacks, kind="gpt2", count=4, tokenizer=None, model_kwargs=None, **settings):
        tokenizer = tokenizer or make_tokenizer()
        model = HuggingFaceModel(make_model(kind, **(model_kwargs or {})), tokenizer)
        return make_trainer(*callbacks, data=text_batches(count), model=model, **settings)

    return make


class Tables(InMemoryLogger):
    def __init__(self):
        super().__init__()
        self.rows = []

    def log_table(self, columns, rows, name="Table", step=None):
        assert (columns, name) == (["prompt", "generation"], "generations")
        self.rows.append((step, rows))


def test_it_writes_when_due_and_at_the_end(make_run):
    tables = Tables()
    trainer = make_run(
        Generate(PROMPTS, "2ba", max_new_tokens=3, do_sample=False), loggers=tables, count=5
    )
    trainer.fit()
    assert [step for step, _ in tables.rows] == [2, 4, 5]
    for _, rows in tables.rows:
        assert [row[0] for row in rows] == PROMPTS
        assert all(not row[1].startswith(row[0]) for row in rows)
    trainer.close()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5"])
def test_a_prompt_alone_gives_what_it_gives_in_a_batch(make_run, kind):
    found = []
    for batch_size in (None, 1):
        generate = Generate(PROMPTS, "1ep", batch_size, max_new_tokens=4, do_sample=False)
        trainer = make_run(generate, kind=kind, count=1)
        trainer.fit()
        found.append(json.loads(memory_of(trainer).tables["generations"])["data"])
        trainer.close()
    assert found[0] == found[1]
    assert all(text for _, text in found[0])


class Modes(Callback):
    def before_forward(self, state, logger):
        assert state.model.training


def test_training_is_as_it_would_be_without(make_run):
    weights = []
    for callbacks in ([Generate(PROMPTS, "1ba", max_new_tokens=4, do_sample=True), Modes()], []):
        trainer = make_run(*callbacks, model_kwargs={"resid_pdrop": 0.3})
        tokenizer = trainer.state.model.tokenizer
        assert tokenizer.padding_side == "right"
        trainer.fit()
        assert tokenizer.padding_side == "right"
        weights.append(torch.cat([p.detach().flatten() for p in trainer.state.model.parameters()]))
        trainer.close()
    assert torch.equal(*weights)


def test_a_tokenizer_without_padding_and_an_empty_prompt(make_run, make_tokenizer):
    tokenizer = make_tokenizer(pad_token=None)
    assert tokenizer.pad_token_id is None
    generate = Generate(["", *PROMPTS], "1ep", max_new_tokens=2, do_sample=False)
    trainer = make_run(generate, tokenizer=tokenizer, count=1)
    trainer.fit()
    assert len(json.loads(memory_of(trainer).tables["generations"])["data"]) == 3
    assert tokenizer.pad_token_id is None
    trainer.close()


def test_models_that_cannot_generate_are_refused_before_training(make_model):  # noqa: F811
    without_tokenizer = HuggingFaceModel(make_model("gpt2"))
    for model, data, why in (
        (Line(), batches(1), "Line has no generate"),
        (without_tokenizer, text_batches(1), "needs a tokenizer"),
    ):
        trainer = make_trainer(Generate(PROMPTS, "1ba"), data=data, model=model)
        with pytest.raises(ValueError, match=why):
            trainer.fit()
        assert int(trainer.state.timestamp.batch) == 0
        trainer.close()


def train_on_two(folder: str) -> list:
    tables = Tables()
    model = HuggingFaceModel(make_gpt2(), make_words())
    trainer = make_trainer(
        Generate(PROMPTS, "1ba", max_new_tokens=3, do_sample=True),
        data=text_batches(2),
        model=model,
        loggers=tables,
    )
    trainer.fit()
    trainer.close()
    return tables.rows


def make_gpt2():
    torch.manual_seed(0)
    return KINDS["gpt2"](pytest.importorskip("transformers"))


def make_words():
    return make_tokenizer.__wrapped__()()  # the fixture's function


def test_settings():
    assert Generate("one text", "1ba").prompts == ["one text"]
    for wrong in ({"prompts": []}, {"prompts": [1]}, {"prompts": ["a"], "batch_size": 0}):
        with pytest.raises(ValueError, match=list(wrong)[-1]):
            Generate(**wrong, interval="1ba")
