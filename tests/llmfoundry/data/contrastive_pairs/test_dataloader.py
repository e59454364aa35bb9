"""Pairs and hard negatives: batches, what is refused and where, and a recipe that trains."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from llmfoundry.command_utils.train import train_from_yaml
from llmfoundry.data.contrastive_pairs.dataloader import (
    StreamingPairsDataset,
    build_pairs_dataloader,
)
from llmfoundry.utils.exceptions import NotEnoughDatasetSamplesError
from streaming.base.format.mds.writer import MDSWriter
from tests.launch import run_ranks
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

RECIPE = Path(__file__).parents[4] / "yamls" / "contrastive-tiny-cpu.yaml"
ANIMALS = "cat dog fox cow hen pig rat bat".split()


def write(folder: Path, rows: list[dict[str, str]]) -> dict[str, Any]:
    with MDSWriter(columns=dict.fromkeys(rows[0], "str"), out=str(folder)) as out:
        for row in rows:
            out.write(row)
    return {"local": str(folder), "max_seq_len": 16}


def rows_with(*negatives: int) -> list[dict[str, str]]:
    """Rows with so many hard negatives each."""
    return [
        {
            "query_text": f"the {ANIMALS[n % 8]}",
            "positive_passage": f"sat {ANIMALS[n % 8]}",
            "negative_passages": json.dumps([f"no {n} {each}" for each in range(count)]),
        }
        for n, count in enumerate(negatives)
    ]


def build(settings: dict[str, Any], tokenizer: Any = None, size: int = 2, **more: Any) -> Any:
    tokenizer = tokenizer or train_tokenizer()
    arguments = {"drop_last": False, "num_workers": 0} | more
    return build_pairs_dataloader(settings, tokenizer, size, **arguments)


def texts(batch: dict[str, torch.Tensor], tokenizer: Any) -> list[list[str]]:
    """What each row of tokens without its padding says."""
    return [
        [tokenizer.decode(ids[mask == 1]) for ids, mask in zip(block, mask_of_block, strict=True)]
        for block, mask_of_block in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]


@pytest.mark.parametrize("pad", [False, True])
def test_texts_of_a_batch(pad: bool, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(pad=pad)
    settings = write(tmp_path, rows_with(2, 2, 2))
    settings |= {"prepend_query": "q ", "prepend_passage": "p ", "append_eos_token": True}
    spec = build(settings, tokenizer)
    batches = list(spec.dataloader)
    assert [batch["input_ids"].shape for batch in batches] == [(2, 4, 16), (1, 4, 16)]
    assert set(batches[0]) == {"input_ids", "attention_mask"}
    assert texts(batches[0], tokenizer)[1] == [
        "q the dog</s>", "p sat dog</s>", "p no 1 0</s>", "p no 1 1</s>"
    ]  # fmt: skip
    assert spec.get_num_tokens_in_batch(batches[0]) == int(batches[0]["attention_mask"].sum())
    assert spec.get_num_samples_in_batch(batches[0]) == 2
    (few,) = build(settings, tokenizer, 3, max_hard_negatives=1).dataloader
    assert few["input_ids"].shape == (3, 3, 16)


def test_pairs_without_negatives(tmp_path: Path) -> None:
    rows = [{"text_a_title": "a cat", "text_b_body": "a mat"}]
    tokenizer = train_tokenizer()
    (batch,) = build(write(tmp_path, rows) | {"append_token": "!"}, tokenizer).dataloader
    assert texts(batch, tokenizer) == [["a cat!", "a mat!"]]


def test_pairs_from_rows_of_json(tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in rows_with(1, 1)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    (batch,) = build({"local": str(tmp_path), "max_seq_len": 16}).dataloader
    assert texts(batch, train_tokenizer())[0] == ["the cat", "sat cat", "no 0 0"]


def test_the_end_is_there_once_and_survives_the_cut(tmp_path: Path) -> None:
    rows = [{"text_a": "a b c d e f g h i j k l m n o p q r s", "text_b": "a"}]
    for adds_end in (False, True):
        tokenizer = train_tokenizer(eos=adds_end)
        folder = tmp_path / str(adds_end)
        (batch,) = build(write(folder, rows) | {"append_eos_token": True}, tokenizer).dataloader
        long, short = batch["input_ids"][0].tolist()
        end = tokenizer.eos_token_id
        assert long.count(end) == 1 and long[-1] == end
        assert int(batch["attention_mask"][0, 1].sum()) == 2 and short[1] == end
        (other,) = build(write(folder / "2", rows) | {"append_token": "!"}, tokenizer).dataloader
        ends = tokenizer("!")["input_ids"]
        assert len(ends) == 1 + adds_end and other["input_ids"][0, 0].tolist()[-len(ends) :] == ends


def test_negatives_are_drawn_by_seed_epoch_and_row(tmp_path: Path) -> None:
    settings = write(tmp_path, rows_with(*[6] * 8)) | {"shuffle_hard_negatives": True}

    def epochs(workers: int = 0, **more: Any) -> list[list[torch.Tensor]]:
        arguments: Any = {"max_hard_negatives": 2, "num_workers": workers}
        loader = build({**settings, **more}, **arguments).dataloader
        return [[batch["input_ids"] for batch in loader] for _ in range(2)]

    first, second = epochs()
    assert any(not torch.equal(one, two) for one, two in zip(first, second, strict=True))
    for found, expected in zip(epochs(2), (first, second), strict=True):
        assert all(map(torch.equal, found, expected))
    other = epochs(shuffle_seed=1)[0]
    assert any(not torch.equal(one, two) for one, two in zip(first, other, strict=True))


def test_rows_with_other_numbers_of_negatives_are_named(tmp_path: Path) -> None:
    settings = write(tmp_path, rows_with(2, 3, 2, 2))
    text = r"have 2 in row 0 of .*shard.00000.mds, 3 in row 1 of .*max_hard_negatives to the least"
    with pytest.raises(ValueError, match=text):
        next(iter(build(settings).dataloader))
    for batch in build(settings, max_hard_negatives=2).dataloader:
        assert batch["input_ids"].shape[1] == 4


def test_what_is_refused(tmp_path: Path) -> None:
    good = write(tmp_path / "good", rows_with(1, 1, 1))
    pairs = write(tmp_path / "pairs", [{"text_a": "a", "text_b": "b"}])
    with pytest.raises(ValueError, match=r"have the columns \['text'\]; the contrastive_pairs"):
        build(write(tmp_path / "1", [{"text": "a"}]))
    with pytest.raises(ValueError, match="begins with text_a and one that begins with text_b"):
        build(write(tmp_path / "2", [{"text_a": "a", "text_a2": "a", "text_b": "b"}]))
    with pytest.raises(ValueError, match="max_hard_negatives=1 has no effect"):
        build(pairs, max_hard_negatives=1)
    with pytest.raises(ValueError, match="shuffle_hard_negatives=True has no effect"):
        build(pairs | {"shuffle_hard_negatives": True})
    with pytest.raises(ValueError, match="append_eos_token and append_token='!' are two ways"):
        build(good | {"append_eos_token": True, "append_token": "!"})
    with pytest.raises(ValueError, match="max_hard_negatives=-1 must be 0 or more"):
        build(good, max_hard_negatives=-1)
    with pytest.raises(TypeError, match="prepend_querry: Did you mean 'prepend_query'"):
        build(good | {"prepend_querry": "a"})
    with pytest.raises(ValueError, match="Tokenizer is required"):
        build_pairs_dataloader(good, None, 2, False, 0)
    with pytest.raises(RuntimeError, match="must have a pad_token_id"):
        StreamingPairsDataset(tokenizer=train_tokenizer(), batch_size=1, **good)
    with pytest.raises(NotEnoughDatasetSamplesError, match="has 3 samples.*batch size is 4"):
        build(good, size=4, drop_last=True)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("query_text", "", "row 1 of .*mds: column 'query_text' must be a text that is not empty"),
        ("negative_passages", "[1]", "row 1 of .*text 0 of column 'negative_passages' must be"),
        (
            "negative_passages",
            "[",
            "row 1 of .*'negative_passages' must be a list of texts as JSON",
        ),
        ("negative_passages", '{"a": 1}', "row 1 of .*must be a list of texts, and is {'a': 1}"),
    ],
)
def test_a_bad_row_is_named(column: str, value: str, text: str, tmp_path: Path) -> None:
    rows = rows_with(1, 1, 1)
    rows[1][column] = value
    with pytest.raises(ValueError, match=text):
        list(build(write(tmp_path, rows)).dataloader)


def trained(folder: Path, save: Path, *more: str) -> tuple[float, float, torch.Tensor]:
    """Returns the losses of evaluations, first and last, and the weights."""
    settings = {
        "variables.data_local": folder,
        "variables.tokenizer": folder / "tokenizer",
        "variables.max_seq_len": 16,
        "variables.run_name": "run",
        "model.d_model": 32,
        "model.n_layers": 1,
        "model.vocab_size": 304,
        "optimizer.lr": 0.01,
        "optimizer.eps": 0.01,  # Or rounding decides where a gradient is next to nothing.
        "scheduler.t_warmup": "2ba",
        "max_duration": "16ba",
        "eval_interval": "8ba",
        "eval_first": "true",
        "global_train_batch_size": 8,
        "device_train_microbatch_size": "auto",
        "device_eval_batch_size": 4,
        "save_interval": "8ba",
        "save_folder": save,
        "log_to_console": "false",
        "loggers": "{inmemory: {}}",
    }
    texts = [f"{key}={value}" for key, value in settings.items()]
    trainer = train_from_yaml(str(RECIPE), [*texts, *more])
    memory: Any = next(each for each in trainer.logger.destinations if hasattr(each, "data"))
    losses = [float(v) for _, v in memory.data["metrics/eval/ContrastiveEvalLoss"]]
    weights = torch.cat([each.detach().flatten() for each in trainer.state.model.parameters()])
    assert int(trainer.state.timestamp.token) > 0
    trainer.close()
    return losses[0], losses[-1], weights


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write(tmp_path / "train", rows_with(*[2] * 32))
    write(tmp_path / "val", rows_with(*[1] * 8))
    train_tokenizer().save_pretrained(tmp_path / "tokenizer")
    return tmp_path


def test_the_recipe_learns_and_resumes(corpus: Path) -> None:
    settings = ["device_train_microbatch_size=8"]
    first, last, weights = trained(corpus, corpus / "save", *settings)
    assert last < 0.5 * first
    load = f"load_path={corpus}/save/ep1-ba8-rank0.pt"
    *_, again = trained(corpus, corpus / "other", *settings, load, "eval_first=false")
    assert torch.equal(again, weights)


def test_two_ranks_train_as_one(corpus: Path) -> None:
    """Passages are gathered over ranks, so that a query chooses among as many."""
    alone = trained(corpus, corpus / "1", "device_train_microbatch_size=8")
    results = run_ranks(trained, 2, corpus, corpus / "2", "device_train_microbatch_size=4")
    for *_, weights in results:
        torch.testing.assert_close(weights, alone[2], rtol=0, atol=2e-4)
