"""Documents into padded rows: all of them, whole where they can be, with hardly any padding."""

import random
from typing import Any

import numpy as np
import pytest

from llmfoundry.data.best_fit_packing import LENGTHS_COLUMN, BestFitPacker, find_padding
from llmfoundry.data.concatenation import Separators
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

PAD, BOS, EOS = 97, 98, 99


def documents_of(sample: dict[str, Any]) -> list[list[int]]:
    ends = np.cumsum(sample[LENGTHS_COLUMN])
    assert (sample["tokens"][ends[-1] :] == PAD).all()
    return [part.tolist() for part in np.split(sample["tokens"], ends)[:-1]]


def some_documents(seed: int) -> list[list[list[int]]]:
    generator = random.Random(seed)
    return [
        [[generator.randrange(97) for _ in range(generator.randrange(12))] for _ in range(number)]
        for number in generator.choices(range(4), k=60)
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("window", [7, 1000])
def test_every_document_is_there_once_and_as_whole_as_can_be(seed: int, window: int) -> None:
    documents = some_documents(seed)
    packer = BestFitPacker(16, Separators((BOS,), (EOS,)), PAD, window)
    samples = list(packer.samples(documents))
    assert {sample["tokens"].shape for sample in samples} == {(16,)}
    assert {sample["tokens"].dtype for sample in samples} == {np.dtype("int32")}
    found = [tuple(each) for sample in samples for each in documents_of(sample)]
    wholes = [[BOS, *(token for piece in each for token in piece), EOS] for each in documents]
    expected = [
        tuple(each[start : start + 16]) for each in wholes for start in range(0, len(each), 16)
    ]
    assert sorted(found) == sorted(expected)
    report, total = packer.report.as_dict(), sum(map(len, wholes))
    assert report["documents"] == 60 and report["samples"] == len(samples)
    assert report["empty_documents"] == sum(not any(each) for each in documents)
    assert report["documents_cut"] == sum(len(each) > 16 for each in wholes)
    assert report["tokens"] == report["tokens_in_samples"] == total
    assert report["tokens_padding"] == 16 * len(samples) - total
    lines = packer.report.lines()
    assert f"padding: {16 * len(samples) - total:,} tokens (" in "\n".join(lines)
    assert not any("left over" in line for line in lines)


def test_neither_the_pieces_nor_another_run_make_a_difference() -> None:
    documents = some_documents(0)
    joined = [[[token for piece in each for token in piece]] for each in documents]
    first, second = (
        [(sample["tokens"].tolist(), sample[LENGTHS_COLUMN].tolist()) for sample in samples]
        for samples in (
            BestFitPacker(16, Separators((), (EOS,)), PAD).samples(each)
            for each in (documents, joined)
        )
    )
    assert first == second


def test_a_limit_of_samples_leaves_something_over() -> None:
    packer = BestFitPacker(4, Separators((), (EOS,)), PAD)
    next(packer.samples([[[1, 2]], [[1, 2]]]))
    assert "left over behind the last sample: 3 tokens" in packer.report.lines()


def test_a_mix_of_lengths_is_hardly_padded() -> None:
    lengths = np.random.default_rng(0).lognormal(6.2, 1.2, 20_000).astype(int)
    packer = BestFitPacker(2048, Separators((), (EOS,)), PAD)
    samples = sum(1 for _ in packer.samples([[0] * length] for length in lengths))
    report = packer.report.as_dict()
    assert report["tokens_padding"] <= 0.01 * 2048 * samples
    assert report["tokens_in_samples"] == lengths.sum() + 20_000


def test_what_pads() -> None:
    padded, bare = train_tokenizer(pad=True), train_tokenizer()
    assert find_padding(padded) == padded.pad_token_id != padded.eos_token_id
    assert find_padding(bare) == bare.eos_token_id
    bare.eos_token = None
    with pytest.raises(ValueError, match=r"neither a padding nor an end token.*or use packing="):
        find_padding(bare)
