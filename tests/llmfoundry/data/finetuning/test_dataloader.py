"""The fine-tuning loader against upstream's batches, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmfoundry.builders.dataloaders import build_dataloader
from llmfoundry.data.finetuning.dataloader import build_finetuning_dataloader
from llmfoundry.tokenizers.dates import get_date_string
from llmfoundry.utils.exceptions import (
    MissingHuggingFaceURLSplitError,
    NotEnoughDatasetSamplesError,
)
from streaming.base.format.mds.writer import MDSWriter
from tests.launch import run_ranks
from tests.llmfoundry.data.finetuning.conftest import GOLDEN

# An unknown key is an error here, and batch_metadata has an effect.
CHANGED = ("unknown_key", "pr_meta")
CASES = [
    case
    for case in json.loads((GOLDEN / "batches.json").read_text())
    if case["name"] not in CHANGED
]
HF = {
    "hf_name": str(GOLDEN / "pr"),
    "split": "train",
    "max_seq_len": 64,
    "decoder_only_format": True,
    "shuffle": False,
}


def loader_of(case: dict[str, Any], tokenizer: Any, folder: Path) -> Any:
    tokenizer.padding_side = case["padding_side"]
    dataset = dict(case["dataset_cfg"])
    for key in {"hf_name", "remote"} & set(dataset):
        dataset[key] = str(GOLDEN / dataset[key].removeprefix("golden/finetuning/"))
    if "local" in dataset:
        dataset["local"] = str(folder / "local")
    cfg = {"name": "finetuning", "dataset": dataset, "drop_last": case["drop_last"]}
    cfg |= {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False}
    return build_dataloader(cfg, tokenizer, case["device_batch_size"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_batches_are_those_of_upstream(case: dict[str, Any], gpt2: Any, tmp_path: Path) -> None:
    batches: list[Any] = []
    if case.get("error"):
        kind, _, text = case["error"].partition(": ")
        with pytest.raises(Exception) as caught:
            batches.extend(loader_of(case, gpt2, tmp_path).dataloader)
        assert type(caught.value).__name__ == kind
        assert str(caught.value).startswith(text[:100])
    else:
        spec = loader_of(case, gpt2, tmp_path)
        batches.extend(spec.dataloader)
        assert len(batches) == case["len"]
    is_decoder_only = case["dataset_cfg"]["decoder_only_format"]
    for batch, recorded in zip(batches, case.get("batches") or [], strict=True):
        expected = {k: v for k, v in recorded["batch"].items() if not k.endswith("python_types")}
        assert set(batch) == set(expected)
        if not is_decoder_only:
            # Upstream counts neither the decoder's tokens nor the first target of each row.
            targets = [sum(each != -100 for each in row) for row in expected["labels"]]
            inputs = [sum(row) for row in expected["attention_mask"]]
            expected["loss_generating_tokens"] = targets
            expected["total_tokens"] = [a + b for a, b in zip(inputs, targets, strict=True)]
        for key, value in expected.items():
            found = batch[key]
            assert (found if isinstance(found, list) else found.tolist()) == value, key


def build(tokenizer: Any, batch_size: int = 4, drop_last: bool = False, **dataset: Any) -> Any:
    cfg = {key: value for key, value in (HF | dataset).items() if value is not None}
    return build_finetuning_dataloader(tokenizer, batch_size, cfg, 0, drop_last=drop_last)


def test_an_unknown_key_is_refused_and_batch_metadata_goes_along(gpt2: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument.*shufle.*shuffle"):
        build(gpt2, shufle=True)
    batch = next(iter(build(gpt2, batch_metadata={"foo": 7}).dataloader))
    assert batch["foo"].tolist() == [7] * 4


SHARDS = {"hf_name": None, "local": str(GOLDEN / "pr_mds")}


@pytest.mark.parametrize(
    ("dataset", "match"),
    [
        ({"local": "x"}, "different sources"),
        ({"remote": "x"}, "different sources"),
        ({"streams": {"a": {"local": "x"}}}, "different sources"),
        ({**SHARDS, "streams": {"a": {"local": "x"}}}, "different sources"),
        ({**SHARDS, "preprocessing_fn": "tatsu-lab/alpaca"}, "different sources"),
        ({**SHARDS, "hf_kwargs": {"name": "x"}}, "different sources"),
        ({**SHARDS, "safe_load": True}, "different sources"),
        ({"hf_name": None, "remote": "x"}, "both `remote` and `local`"),
        ({"hf_name": None}, "names no source"),
        ({"max_seq_len": None}, "needs max_seq_len"),
        ({"decoder_only_format": None}, "needs decoder_only_format"),
        ({"shuffle": None}, "needs shuffle"),
        ({"max_seq_len": 64.5}, "whole number"),
        ({"packing_ratio": 0.5}, "at least 1"),
        ({"packing_ratio": "much"}, "auto"),
        ({"max_leftover_bins_to_keep": 2}, "packing_ratio has not been set"),
        ({"preprocessing_fn": "no.such:function"}, "Failed to import"),
        ({"eos_token_id": 3}, "eos_token_id"),
    ],
)
def test_settings_that_cannot_be_are_refused(dataset: Any, match: str, gpt2: Any) -> None:
    with pytest.raises(ValueError, match=match):
        build(gpt2, **dataset)


def test_a_setting_that_is_null_is_left_out(gpt2: Any) -> None:
    policy = {"target_prompts": None, "target_responses": None}
    spec = build_finetuning_dataloader(gpt2, 4, HF | policy, 0)
    assert rows_of(spec) == rows_of(build(gpt2))


@pytest.mark.parametrize("packing", [None, "best_fit"])
def test_a_date_is_pinned_for_shards_too(packing: Any, gpt2: Any, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with MDSWriter(out=str(tmp_path), columns={"messages": "json"}) as out:
        out.write({"messages": messages})
    shards = {"hf_name": None, "split": None, "local": str(tmp_path), "packing": packing}
    date = "07 Jul 2025"
    with pytest.raises(ValueError, match="has no effect"):
        build(gpt2, 1, **shards, date_string=date)
    gpt2.chat_template = "{{ date_string }} {% for m in messages %}{{ m.content }}{% endfor %}"
    assert get_date_string() in gpt2.decode(rows_of(build(gpt2, 1, **shards))[0])
    assert date in gpt2.decode(rows_of(build(gpt2, 1, **shards, date_string=date))[0])
    with pytest.raises(ValueError, match="date_string must be a date such as"):
        build(gpt2, 1, **shards, date_string="2025-07-07")


def test_packing_is_for_decoders_and_a_tokenizer_is_needed(gpt2: Any) -> None:
    with pytest.raises(NotImplementedError, match="decoder-only"):
        build(gpt2, packing_ratio=2, decoder_only_format=False)
    with pytest.raises(ValueError, match="Tokenizer is required"):
        build(None)
    with pytest.raises(MissingHuggingFaceURLSplitError):
        build(gpt2, split=None)


def test_local_shards_need_no_remote(gpt2: Any) -> None:
    for dataset in (
        {**SHARDS, "local": str(GOLDEN / "pr_mds_tok")},
        {
            "hf_name": None,
            "split": None,
            "streams": {"a": {"local": str(GOLDEN / "pr_mds_tok"), "split": "train"}},
        },
    ):
        shards = [batch["input_ids"].tolist() for batch in build(gpt2, **dataset).dataloader]
        assert shards == [batch["input_ids"].tolist() for batch in build(gpt2).dataloader]


def test_columns_by_mapping(gpt2: Any) -> None:
    mapping = {"prompt": "response", "response": "prompt"}
    batch = next(iter(build(gpt2, preprocessing_fn=mapping).dataloader))
    assert batch["input_ids"][0, :3].tolist() == [6342, 13, 2061]


def test_b62_fewer_rows_than_a_batch(gpt2: Any) -> None:
    with pytest.raises(NotEnoughDatasetSamplesError, match="Your dataset.*has 9 samples.*is 16"):
        build(gpt2, batch_size=16, drop_last=True)
    (batch,) = build(gpt2, batch_size=16).dataloader
    assert len(batch["input_ids"]) == 9


@pytest.mark.parametrize(
    ("messages", "limit", "reason"),
    [
        (("a", "b", "c", " "), 64, "its answer is empty"),
        (("a " * 90, "b"), 64, "max_seq_len=64 has removed"),
        (("a", "", "c", "d"), 64, ""),
    ],
)
def test_a_row_of_text_with_nothing_to_learn_is_named(
    messages: tuple[str, ...], limit: int, reason: str, gpt2: Any, tmp_path: Path
) -> None:
    gpt2.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    roles = ("user", "assistant") * 2
    rows = [
        [{"role": role, "content": text} for role, text in zip(roles, texts)]
        for texts in (("a", "b"), messages)
    ]
    with MDSWriter(columns={"messages": "json"}, out=str(tmp_path)) as out:
        for row in rows:
            out.write({"messages": row})
    local = {"hf_name": None, "split": None, "local": str(tmp_path), "max_seq_len": limit}
    loader = build(gpt2, 2, **local).dataloader
    if not reason:
        assert len(next(iter(loader))["input_ids"]) == 2
        return
    with pytest.raises(ValueError, match=rf"{reason}.* It is row 1 of .*shard\.00000\.mds"):
        next(iter(loader))


def rows_of(spec: Any) -> list[list[int]]:
    return [row for batch in spec.dataloader for row in batch["input_ids"].tolist()]


def shares_of_a_rank(folder: str) -> tuple[Any, Any, str]:
    import datasets
    from transformers import AutoTokenizer

    datasets.config.HF_DATASETS_CACHE = Path(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(GOLDEN / "tokenizer"))
    own, replicated = (
        rows_of(build(tokenizer, 2, max_seq_len=128, replication=each)) for each in (None, 2)
    )
    try:
        build(tokenizer, hf_name=f"{folder}/faulty.jsonl")
    except Exception as error:
        return own, replicated, str(error)
    return own, replicated, ""


def test_ranks_share_the_rows_and_stop_together_at_a_faulty_one(gpt2: Any, tmp_path: Path) -> None:
    (tmp_path / "faulty.jsonl").write_text('{"prompt": "a", "response": 3}\n')
    alone = rows_of(build(gpt2, max_seq_len=128))
    ranks = run_ranks(shares_of_a_rank, 2, str(tmp_path))
    assert sorted(row for own, _, _ in ranks for row in own) == sorted(alone)  # none twice
    assert [len(own) for own, _, _ in ranks] == [5, 5]
    assert [replicated for _, replicated, _ in ranks] == [alone, alone]
    assert all("Row 1 of" in error and "Expected response" in error for _, _, error in ranks)
