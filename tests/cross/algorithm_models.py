"""Small models with data, on which every algorithm is tried, and a Trainer around them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import composer.algorithms
from composer import Algorithm, Trainer
from composer.models import ComposerClassifier, HuggingFaceModel
from composer.optim import DecoupledAdamW
from composer.utils import dist
from composer.utils.misc import unwrap_model
from tests.composer.algorithms.images import Images
from tests.composer.algorithms.settings import Setting
from tests.composer.algorithms.surgery import Bottleneck
from tests.composer.models.conftest import KINDS

ROWS = 12
BATCH = 4


class Texts(Dataset):
    """Rows of tokens, each its own label."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.ids = torch.randint(3, 60, (ROWS, 16), generator=generator)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def _rows(*shape: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(ROWS, *shape, generator=generator)
    return TensorDataset(x, torch.randint(0, 4, (ROWS,), generator=generator))


def _mlp() -> Any:
    nn = torch.nn
    layers: list[Any] = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh()]
    return ComposerClassifier(nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(16, 4)), 4)


def _cnn() -> Any:
    nn = torch.nn
    layers: list[Any] = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)]
    return ComposerClassifier(nn.Sequential(*layers), num_classes=4)


def _resnet() -> Any:
    nn = torch.nn
    layers: list[Any] = [nn.Conv2d(3, 4, 3, padding=1), Bottleneck(), Bottleneck()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)]
    return ComposerClassifier(nn.Sequential(*layers), num_classes=4)


def _groupnorm() -> Any:
    nn = torch.nn
    layers: list[Any] = [nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)]
    return ComposerClassifier(nn.Sequential(*layers), num_classes=4)


def _hf(kind: str) -> Any:
    import transformers

    return HuggingFaceModel(KINDS[kind](transformers), None, use_logits=True)


def _mpt() -> Any:
    from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM

    return ComposerMPTCausalLM(
        d_model=16,
        n_heads=2,
        n_layers=2,
        expansion_ratio=2,
        max_seq_len=16,
        vocab_size=64,
        tie_word_embeddings=False,
        no_bias=True,  # that of keys moves no score: its gradient is noise, which Adam makes steps
        attn_config={"attn_impl": "torch"},
        use_train_metrics=False,
    )


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Dataset]]] = {
    "mlp": (_mlp, lambda: _rows(8)),
    "cnn": (_cnn, lambda: _rows(3, 16, 16)),
    "images": (_cnn, lambda: Images(ROWS)),  # with a transform, as torchvision's datasets
    "resnet": (_resnet, lambda: _rows(3, 16, 16)),
    "groupnorm": (_groupnorm, lambda: _rows(3, 16, 16)),
    "gpt2": (lambda: _hf("gpt2"), Texts),
    "bert": (lambda: _hf("bert"), Texts),
    "mpt": (_mpt, Texts),
}


def build(setting: Setting) -> Algorithm:
    """Makes the algorithm of a row."""
    return getattr(composer.algorithms, setting.algorithm)(**setting.kwargs)


def loader(data: Dataset) -> DataLoader:
    """Cuts a data set into batches, of each of which every rank gets its part."""
    sampler = dist.get_sampler(data) if dist.get_world_size() > 1 else None
    return DataLoader(data, batch_size=BATCH // dist.get_world_size(), sampler=sampler)


def trainer(kind: str, algorithms: Sequence[Algorithm], **settings: Any) -> Trainer:
    """Returns a Trainer of a model, for two epochs of three batches with an evaluation each."""
    make, data = MODELS[kind]
    torch.manual_seed(7)
    model = make()
    optimizer = settings.pop("optimizer", lambda m: DecoupledAdamW(m.parameters(), lr=1e-2))
    settings = {"max_duration": "2ep", "eval_interval": "1ba", "seed": 11, **settings}
    return Trainer(
        model=model,
        optimizers=optimizer(model),
        algorithms=list(algorithms),
        train_dataloader=loader(data()),
        eval_dataloader=loader(data()),
        device="cpu",
        progress_bar=False,
        **settings,
    )


def tensors_of(state: Any) -> dict[str, torch.Tensor]:
    """Returns the weights, and what averages of them the algorithms keep, whole."""
    found = dict(unwrap_model(state.model).state_dict())
    for name, saved in state.state_dict()["algorithms"]:
        found |= {f"{name} {key}": value for key, value in _nested(saved)}
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
        for name, value in found.items()
    }


def _nested(value: Any, path: str = "") -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(path, value)]
    items = value.items() if isinstance(value, dict) else ()
    return [pair for key, child in items for pair in _nested(child, f"{path}/{key}")]
