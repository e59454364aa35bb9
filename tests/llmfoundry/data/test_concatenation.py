"""Documents into rows: nothing lost without a number, separators exactly once."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from llmfoundry.data.concatenation import Separators, TokenConcatenator, find_separators
from llmfoundry.data.data import ConcatTokensDataset, NoConcatDataset
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:You specified .* which is not one token")


@pytest.fixture(scope="module")
def gpt2_pieces() -> Any:
    from transformers import AutoTokenizer

    folder = Path(__file__).parents[2] / "golden" / "finetuning" / "tokenizer"
    return AutoTokenizer.from_pretrained(str(folder))


def golden_cases() -> list[dict[str, Any]]:
    path = Path(__file__).parents[2] / "golden" / "finetuning" / "concat.json"
    return json.loads(path.read_text())


def golden_rows() -> list[dict[str, str]]:
    path = Path(__file__).parents[2] / "golden" / "finetuning" / "pretrain_json" / "train.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: str(case["dir"]))
def test_rows_are_those_of_upstream(case: dict[str, Any], gpt2_pieces: Any) -> None:
    def make() -> ConcatTokensDataset:
        return ConcatTokensDataset(
            golden_rows(),
            gpt2_pieces,
            case["concat_tokens"],
            case["bos_text"],
            case["eos_text"],
            case["no_wrap"],
        )

    if "error" in case:
        with pytest.raises(ValueError, match="does not insert an EOS nor BOS token"):
            make()
        return
    dataset = make()
    for _ in range(2):  # A second pass gives the same.
        rows = [row["tokens"] for row in dataset]
        assert [row.tolist() for row in rows] == case["tokens"]
        assert {str(row.dtype) for row in rows} == {case["dtype"]}


@pytest.mark.parametrize("no_wrap", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_every_token_is_accounted_for(seed: int, no_wrap: bool) -> None:
    generator = random.Random(seed)
    documents = [
        [list(range(generator.randrange(8))) for _ in range(generator.randrange(4))]
        for _ in range(50)
    ]
    concatenator = TokenConcatenator(7, Separators((98,), (99,)), no_wrap)
    rows = list(concatenator.documents(documents))
    report = concatenator.report
    content = sum(len(piece) for document in documents for piece in document)
    assert report.documents == 50
    assert report.tokens == content + 2 * 50
    assert report.tokens == report.tokens_in_samples + report.tokens_cut + report.tokens_left_over
    assert report.samples == len(rows)
    assert report.tokens_left_over < 7
    assert (report.tokens_cut > 0) == no_wrap


def test_pieces_make_no_difference() -> None:
    document = list(range(40))
    whole = TokenConcatenator(6, Separators((98,), (99,)))
    split = TokenConcatenator(6, Separators((98,), (99,)))
    first = [row.tolist() for row in whole.documents([[document]] * 3)]
    second = [row.tolist() for row in split.documents([[[], document[:5], document[5:], []]] * 3)]
    assert first == second


def test_b66_a_separator_that_the_tokenizer_adds_is_there_once() -> None:
    tokenizer = train_tokenizer(bos=True, eos=True)
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    for texts in (("", ""), (tokenizer.bos_token, tokenizer.eos_token), (tokenizer.bos_token, "")):
        assert find_separators(tokenizer, *texts) == Separators((bos,), (eos,))
        rows = ConcatTokensDataset([{"text": "a b"}] * 3, tokenizer, 1, *texts, no_wrap=False)
        ids = [int(row["tokens"][0]) for row in rows]
        assert ids.count(bos) == ids.count(eos) == 3
        assert ids[0] == bos and ids[-1] == eos


def test_b65_a_separator_that_the_text_brings_is_not_doubled() -> None:
    tokenizer = train_tokenizer()
    bos, eos = tokenizer.bos_token, tokenizer.eos_token
    rows = ConcatTokensDataset(
        [{"text": f"{bos}a b{eos}"}, {"text": "a"}], tokenizer, 1, bos, eos, no_wrap=False
    )
    ids = [int(row["tokens"][0]) for row in rows]
    assert ids.count(tokenizer.bos_token_id) == ids.count(tokenizer.eos_token_id) == 2
    assert rows.concatenator.report.separators_present == 2


def test_b66_another_separator_than_the_tokenizers_own_is_refused() -> None:
    tokenizer = train_tokenizer(eos=True)
    with pytest.raises(ValueError, match="the tokenizer itself adds"):
        find_separators(tokenizer, "", tokenizer.bos_token)


def test_b67_documents_without_a_separator_are_refused() -> None:
    with pytest.raises(ValueError, match="without a separating token"):
        find_separators(train_tokenizer(), "", "")


def test_a_separator_of_several_tokens_is_remarked_on() -> None:
    with pytest.warns(UserWarning, match="not one token"):
        find_separators(train_tokenizer(), "", "a b c")


def test_rows_need_a_length() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        TokenConcatenator(0, Separators())


def test_texts_as_they_are() -> None:
    assert list(NoConcatDataset([{"text": "na\u00efve"}])) == [{"text": "na\u00efve".encode()}]
