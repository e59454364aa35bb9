"""muP by its definition, and by what it is for: activations that move alike at every width."""

import copy
from typing import Any

import pytest
import torch

from composer.algorithms import MuP
from composer.core.event import Event
from composer.optim import DecoupledAdamW, DecoupledMuon
from tests.composer.plugins import HandRun

WIDTHS = (32, 128, 512)


class Net(torch.nn.Module):
    """An embedding, three hidden layers and a head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(16, width)
        self.hidden = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, 16)

    def forward(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        seen = [self.embedding(tokens)]
        for layer in self.hidden:
            seen.append(torch.relu(layer(seen[-1])))
        return [*seen, self.head(self.norm(seen[-1]))]


class Run:
    """As much of a State as the algorithm looks at."""

    def __init__(self, model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizers = list(optimizers)


def applied(model: torch.nn.Module, base: Any, *optimizers: torch.optim.Optimizer) -> None:
    run: Any = Run(model, *optimizers)
    assert MuP(base).match(Event.INIT, run) and not MuP(base).match(Event.FIT_START, run)
    MuP(base).apply(Event.INIT, run, None)  # type: ignore[arg-type]


def net(width: int) -> Net:
    torch.manual_seed(width)
    return Net(width)


def rms(tensor: torch.Tensor) -> float:
    return float(tensor.detach().square().mean().sqrt())


def test_weights_and_rates_are_those_of_the_table() -> None:
    model, base = net(256), net(32)
    optimizer = DecoupledAdamW(model.parameters(), lr=0.8)
    applied(model, base, optimizer)
    ratio = 256 / 32
    for name, divisor in (
        ("embedding.weight", 1.0),
        ("hidden.1.weight", ratio**0.5),
        ("hidden.1.bias", 1.0),
        ("head.weight", ratio),
        ("norm.weight", 1.0),
    ):
        expected = rms(base.get_parameter(name)) / divisor
        assert rms(model.get_parameter(name)) == pytest.approx(expected, rel=1e-5), name
    rates = {p: g["lr"] for g in optimizer.param_groups for p in g["params"]}
    firsts = {p: g["initial_lr"] for g in optimizer.param_groups for p in g["params"]}
    assert rates == firsts and len(rates) == len(list(model.parameters()))
    divided = {"hidden.0.weight", "hidden.1.weight", "hidden.2.weight", "head.weight"}
    for name, parameter in model.named_parameters():
        assert rates[parameter] == pytest.approx(0.8 / ratio if name in divided else 0.8), name


def test_muon_and_torchs_own_decay() -> None:
    model = net(128)
    muon = DecoupledMuon(model, lr=1.0)
    adam = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.1)
    applied(model, lambda: net(32), muon, adam)
    hidden, head = model.hidden[0].weight, model.head.weight  # type: ignore[union-attr]
    of_muon = {p: g for g in muon.param_groups for p in g["params"]}
    of_adam = {p: g for g in adam.param_groups for p in g["params"]}
    assert of_muon[hidden]["lr"] == pytest.approx(0.5)  # by the root of the ratio
    assert of_muon[head]["lr"] == pytest.approx(0.25)
    for group in of_adam.values():
        assert group["lr"] * group["weight_decay"] == pytest.approx(0.1)


def test_at_the_width_of_the_base_nothing_changes() -> None:
    model = net(32)
    before = copy.deepcopy(model.state_dict())
    optimizer = DecoupledAdamW(model.parameters(), lr=0.1)
    applied(model, net(32), optimizer)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert len(optimizer.param_groups) == 1


def moves(width: int, with_mup: bool, make: Any) -> list[float]:
    """How far four steps move each activation, in root mean squares."""
    model = net(width)
    optimizer = make(model)
    if with_mup:
        applied(model, net(WIDTHS[0]), optimizer)
    tokens = torch.arange(16)
    first = [each.detach() for each in model(tokens)]
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens)[-1], (tokens + 1) % 16).backward()
        optimizer.step()
    return [rms(one - other) for one, other in zip(model(tokens), first, strict=True)]


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_coordinates_move_alike_at_every_width(optimizer: str) -> None:
    def make(model: torch.nn.Module) -> torch.optim.Optimizer:
        if optimizer == "adam":
            return DecoupledAdamW(model.parameters(), lr=5e-3, weight_decay=0)
        return DecoupledMuon(model, lr=2e-2, weight_decay=0)

    narrow, wide = (moves(width, True, make) for width in (WIDTHS[0], WIDTHS[-1]))
    plain = moves(WIDTHS[-1], False, make)
    growth = [w / n for w, n in zip(wide, narrow, strict=True)]
    assert all(0.4 < each < 2.0 for each in growth), growth
    assert max(p / n for p, n in zip(plain, narrow, strict=True)) > 3.5, "it takes muP"


def mpt(d_model: int, **settings: Any) -> Any:
    from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM

    torch.manual_seed(d_model)
    return ComposerMPTCausalLM(
        d_model=d_model,
        n_heads=d_model // 8,
        n_layers=2,
        expansion_ratio=2,
        max_seq_len=16,
        vocab_size=32,
        use_train_metrics=False,
        attn_config={"attn_impl": "torch"},
        **settings,
    )


def test_an_mpt_by_its_width() -> None:
    model = mpt(64, tie_word_embeddings=False)
    narrow = model.at_width(16)
    assert narrow["model"].config.n_heads == 2
    optimizer = DecoupledAdamW(model.parameters(), lr=0.4)
    applied(model, 16, optimizer)
    rates = {p: g["lr"] for g in optimizer.param_groups for p in g["params"]}
    transformer = model.model.transformer
    assert rates[transformer.blocks[0].ffn.up_proj.weight] == pytest.approx(0.1)
    assert rates[transformer.wte.weight] == rates[transformer.wpe.weight] == 0.4
    assert rates[model.model.lm_head.weight] == pytest.approx(0.1)
    with pytest.raises(ValueError, match="no whole number of heads"):
        model.at_width(12)
    tied = mpt(64)
    with pytest.raises(ValueError, match="tie_word_embeddings: false"):
        applied(tied, 16, DecoupledAdamW(tied.parameters()))


def logits_move(d_model: int, with_mup: bool) -> float:
    model = mpt(d_model, tie_word_embeddings=False)
    optimizer = DecoupledAdamW(model.parameters(), lr=1e-2, weight_decay=0)
    if with_mup:
        applied(model, 16, optimizer)
    ids = torch.arange(64).reshape(4, 16) % 32
    batch = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
    before = model.eval()(batch).logits.detach()
    for _ in range(4):
        optimizer.zero_grad()
        model.train().loss(model(batch), batch).backward()
        optimizer.step()
    return rms(model.eval()(batch).logits - before)


def test_logits_of_an_mpt_move_alike_at_every_width() -> None:
    narrow, wide, plain = logits_move(16, True), logits_move(256, True), logits_move(256, False)
    assert 0.4 < wide / narrow < 2.0, (narrow, wide)
    assert plain / narrow > 3.0, (narrow, plain)


def test_what_it_cannot_do_it_says() -> None:
    model = net(64)
    with pytest.raises(ValueError, match="not of SGD"):
        applied(model, net(32), torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="no at_width"):
        applied(model, 32)
    with pytest.raises(ValueError, match="has no parameter 'embedding.weight'"):
        applied(model, torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="init_device: cpu"):
        applied(torch.nn.Linear(2, 2, device="meta"), 1)
    tied = [net(width) for width in (64, 32)]
    for each in tied:
        each.head.weight = each.embedding.weight
    with pytest.raises(ValueError, match="untie them"):
        applied(tied[0], tied[1])


def test_the_engine_applies_it_at_init() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Linear(64, 1))
    before = rms(model[1].weight)
    base = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Linear(16, 1))
    run = HandRun(model=model)
    run.state.optimizers = torch.optim.AdamW(model.parameters())
    run.state.algorithms = [MuP(base)]
    run.engine._run_algorithms(Event.INIT)
    assert rms(model[1].weight) == pytest.approx(rms(base[1].weight) / 4) != pytest.approx(before)
    run.close()
