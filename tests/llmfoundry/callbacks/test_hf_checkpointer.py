"""Folders that transformers loads, written while training goes on."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, MptForCausalLM

from composer.algorithms import EMA
from composer.core.callback import Callback
from composer.utils.object_store.s3_object_store import S3ObjectStore
from llmfoundry.callbacks.hf_checkpointer import HuggingFaceCheckpointer
from llmfoundry.utils.exceptions import StoragePermissionError
from tests.composer.checkpoint.sharded_runs import make as make_other_run
from tests.composer.utils.object_store.faults import Proxy
from tests.llmfoundry.callbacks.small_runs import LORA, llama, llama_folder, mpt, run
from tests.llmfoundry.utils.fake_hub import Hub, fake_hub

TOKENS = torch.arange(3, 13)[None]


class Diary(Callback):
    """Keeps the weights of each batch, and the losses."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, torch.Tensor]] = {}
        self.losses: list[float] = []

    def batch_end(self, state: Any, logger: Any) -> None:
        model = state.model.state_dict()
        self.weights[int(state.timestamp.batch)] = {
            name.removeprefix("model."): value.clone() for name, value in model.items()
        }
        self.losses.append(state.total_loss_dict["loss/train/total"])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return llama_folder(tmp_path_factory.mktemp("base"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with fake_hub(monkeypatch) as running:
        yield running


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "huggingface").iterdir())


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model.eval()(input_ids=TOKENS).logits


MIXTURE = {
    "ffn_type": "torch_dmoe",
    "moe_num_experts": 4,
    "moe_top_k": 2,
    "mlp_type": "mlp",
    "moe_jitter_eps": None,
    "moe_normalize_expert_weights": 1,
    "uniform_expert_assignment": False,
}


@pytest.mark.parametrize("kind", ["mpt", "mpt with code", "mixture", "llama"])
def test_a_folder_has_the_weights_of_its_batch(kind: str, base: str, tmp_path: Path) -> None:
    make: dict[str, Callable[[], Any]] = {
        "mpt": mpt,
        "mpt with code": lambda: mpt(no_bias=False),
        "mixture": lambda: mpt(ffn_config=dict(MIXTURE)),
        "llama": lambda: llama(base),
    }
    model, diary = make[kind](), Diary()
    trainer = run(model, diary, HuggingFaceCheckpointer(str(tmp_path), "3ba"), end="4ba")
    trainer.fit()
    trainer.close()
    assert saved(tmp_path) == ["ba3", "ba4"]
    for batch in (3, 4):
        folder = tmp_path / "huggingface" / f"ba{batch}"
        expected = diary.weights[batch]
        assert same(load_file(folder / "model.safetensors"), _stored_once(expected))
    loaded = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=kind != "llama")
    is_theirs = isinstance(loaded, MptForCausalLM)  # whose kernels differ
    assert is_theirs == (kind == "mpt")
    exact = {} if is_theirs else {"atol": 0, "rtol": 0}
    torch.testing.assert_close(logits(loaded), logits(model.model), **exact)
    assert (
        AutoTokenizer.from_pretrained(folder)("a b")["input_ids"]
        == (model.tokenizer("a b")["input_ids"])
    )


def _stored_once(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in weights.items() if name != "lm_head.weight"}


def test_half_precision_and_small_files(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_FOUNDRY_SAVE_FOLDER_HF_MAX_SHARD_SIZE", "8KB")
    model = llama(base)
    checkpointer = HuggingFaceCheckpointer(
        f"{tmp_path}/{{run_name}}", 1, "ep{epoch}", precision="bfloat16"
    )
    run(model, checkpointer, end="1ep").fit()
    folder = tmp_path / "run" / "huggingface" / "ep1"
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype is torch.bfloat16
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, model.model.state_dict()[name].bfloat16())


class _Held(HuggingFaceCheckpointer):
    """Writes nothing before it is told to."""

    may_write = threading.Event()

    def _write_folder(self, save: Any, folder: Path) -> None:
        assert self.may_write.wait(60)
        super()._write_folder(save, folder)


class _Release(Callback):
    def __init__(self, batch: int) -> None:
        self.batch = batch

    def batch_start(self, state: Any, logger: Any) -> None:
        if int(state.timestamp.batch) == self.batch:
            _Held.may_write.set()


def test_training_goes_on_while_a_folder_is_written(base: str, tmp_path: Path) -> None:
    _Held.may_write.clear()
    diary = Diary()
    run(llama(base), diary, _Held(str(tmp_path), "2ba"), _Release(3), end="4ba").fit()
    weights = load_file(tmp_path / "huggingface" / "ba2" / "model.safetensors")
    assert same(weights, _stored_once(diary.weights[2]))


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft
@pytest.mark.parametrize("kind", ["mpt", "adapters"])
def test_saving_changes_nothing_of_training(kind: str, base: str, tmp_path: Path) -> None:
    losses = []
    for callbacks in ([], [HuggingFaceCheckpointer(str(tmp_path), "1ba", precision="float16")]):
        diary = Diary()
        adapters = {**LORA, "lora_dropout": 0.3}
        model = mpt(resid_pdrop=0.3) if kind == "mpt" else llama(base, peft_config=adapters)
        run(model, diary, *callbacks, end="4ba").fit()
        losses.append(diary.losses)
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("interval", "end", "expected"),
    [
        (1, "2ep", {8, 16}),
        ("1ep", "12ba", {8, 12}),
        ("3ba", "8ba", {3, 6, 8}),
        ("4ba", "1ep", {4, 8}),
        ("0.5dur", "6ba", {3, 6}),
        ("1dur", "1ep", {8}),
        ("5sp", "4ba", {3, 4}),
        ("48tok", "4ba", {2, 4}),
    ],
)
def test_when_it_saves(interval: Any, end: str, expected: set[int], tmp_path: Path) -> None:
    calls: list[tuple[int, bool]] = []

    class Counted(HuggingFaceCheckpointer):
        def _save_checkpoint(self, state: Any, logger: Any, **kwargs: Any) -> None:
            calls.append((int(state.timestamp.batch), kwargs["register_to_mlflow"]))

    run(mpt(n_layers=1), Counted(str(tmp_path), interval), end=end).fit()
    assert [batch for batch, _ in calls] == sorted(expected)
    assert [is_last for _, is_last in calls] == [False] * (len(calls) - 1) + [True]


def test_what_is_there_is_replaced_only_if_allowed(tmp_path: Path) -> None:
    model, stale = mpt(n_layers=1), tmp_path / "huggingface" / "ba2" / "stale.bin"
    stale.parent.mkdir(parents=True)
    stale.touch()
    with pytest.raises(FileExistsError, match="overwrite is off"):
        run(model, HuggingFaceCheckpointer(str(tmp_path), "2ba", overwrite=False), end="2ba").fit()
    assert stale.exists()
    run(model, HuggingFaceCheckpointer(str(tmp_path), "2ba"), end="2ba").fit()
    assert not stale.exists() and (stale.parent / "config.json").exists()


def test_a_resumed_run_saves_what_is_new(tmp_path: Path) -> None:
    how = {"save_folder": str(tmp_path / "composer"), "save_interval": "2ba", "autoresume": True}
    for end in ("4ba", "6ba"):
        trainer = run(
            mpt(n_layers=1),
            HuggingFaceCheckpointer(str(tmp_path), "2ba", overwrite=False),
            end=end,
            **how,
        )
        before = {path: path.stat().st_ino for path in tmp_path.glob("huggingface/*")}
        trainer.fit()
        trainer.close()
        assert all(path.stat().st_ino == number for path, number in before.items())
    assert saved(tmp_path) == ["ba2", "ba4", "ba6"]


def test_leftovers_of_killed_saves_go(tmp_path: Path) -> None:
    killed = tmp_path / "huggingface" / ".ba7.partial"
    foreign = tmp_path / "huggingface" / ".other.partial"
    for folder in (killed, foreign):
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
    run(mpt(n_layers=1), HuggingFaceCheckpointer(str(tmp_path), "2ba"), end="2ba").fit()
    assert {path.name for path in (tmp_path / "huggingface").iterdir()} == {"ba2", foreign.name}


KILLED = """
import os, sys
from pathlib import Path
from llmfoundry.callbacks.hf_checkpointer import HuggingFaceCheckpointer
from tests.llmfoundry.callbacks.small_runs import mpt, run

class Killed(HuggingFaceCheckpointer):
    def _write_folder(self, save, folder):
        super()._write_folder(save, folder)
        if folder.name == ".ba4.partial":
            os._exit(7)

run(mpt(n_layers=1), Killed(sys.argv[1], "2ba"), end="6ba").fit()
"""


@pytest.mark.slow
def test_a_killed_run_leaves_no_half_folder(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment)
    assert done.returncode == 7
    assert saved(tmp_path) == [".ba4.partial", "ba2"]


def test_averaged_weights_are_saved_where_checkpoints_have_them(tmp_path: Path) -> None:
    diary = Diary()
    run(
        mpt(n_layers=1),
        HuggingFaceCheckpointer(str(tmp_path), "2ba"),
        diary,
        end="4ba",
        algorithms=[EMA(half_life="3ba")],
        save_folder=str(tmp_path / "composer"),
        save_interval="4ba",
    ).fit()
    for batch in (2, 4):
        found = load_file(tmp_path / "huggingface" / f"ba{batch}" / "model.safetensors")
        assert not same(found, _stored_once(diary.weights[batch])), "these are the trained ones"
    content = torch.load(tmp_path / "composer" / "ep0-ba4-rank0.pt", weights_only=False)
    expected = {k.removeprefix("model."): v for k, v in content["state"]["model"].items()}
    assert same(found, expected)


# Adapters


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft
def test_adapters_are_saved_alone(base: str, tmp_path: Path) -> None:
    from peft import PeftModel

    model = llama(base, peft_config=dict(LORA))
    logged = {"metadata": {"pretrained_model_name": base}}
    run(
        model,
        HuggingFaceCheckpointer(str(tmp_path), "2ba", mlflow_logging_config=logged),
        end="2ba",
    ).fit()
    folder = tmp_path / "huggingface" / "ba2"
    names = {"LICENSE", "README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert {path.name for path in folder.iterdir()} - names == {
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert (
        json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == base
    )
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    assert torch.equal(logits(loaded), logits(model.model))
    assert not torch.equal(logits(loaded), logits(AutoModelForCausalLM.from_pretrained(base)))
    assert "license: bsd-3-clause" in (folder / "README.md").read_text()


# Stores and the hub


def test_a_store_gets_the_same_files(
    base: str, s3: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (str(tmp_path), "s3://bucket/runs/{run_name}"):
        run(llama(base), HuggingFaceCheckpointer(place, "2ba"), end="2ba").fit()
    puts = [path for method, path, _headers in s3.seen if method == "PUT"]
    assert puts[-1] == "/bucket/runs/run/huggingface/ba2/config.json"
    store, here = S3ObjectStore("bucket"), tmp_path / "huggingface" / "ba2"
    names = store.list_objects("runs/run/huggingface/ba2/")
    assert [Path(name).name for name in names] == sorted(path.name for path in here.iterdir())
    for name in names:
        store.download_object(name, tmp_path / "there" / Path(name).name)
        found = (tmp_path / "there" / Path(name).name).read_bytes()
        assert found == (here / Path(name).name).read_bytes()
    with pytest.raises(FileExistsError, match="overwrite is off"):
        run(llama(base), HuggingFaceCheckpointer(place, "2ba", overwrite=False), end="2ba").fit()
    run(llama(base), HuggingFaceCheckpointer(place, "2ba"), end="2ba").fit()
    monkeypatch.setenv("LLM_FOUNDRY_SAVE_FOLDER_HF_MAX_SHARD_SIZE", "10KB")
    n_objects = len(store.list_objects("runs/"))
    with pytest.raises(FileExistsError, match=r"would stay.*'model.safetensors'"):
        run(llama(base), HuggingFaceCheckpointer(place, "2ba"), end="2ba").fit()
    assert len(store.list_objects("runs/")) == n_objects


def test_an_error_of_the_store_is_raised(s3: Proxy) -> None:
    s3.mood = lambda method: "403" if method == "PUT" else None
    for end in (2, 4):  # where the run waits for the save, and at a batch
        checkpointer = HuggingFaceCheckpointer("s3://bucket/runs", "2ba")

        class Wait(Callback):
            def batch_start(self, state: Any, logger: Any) -> None:
                if int(state.timestamp.batch) == 2:
                    wait([checkpointer._pending], timeout=60)

        trainer = run(mpt(n_layers=1), checkpointer, Wait(), end=f"{end}ba")
        with pytest.raises(StoragePermissionError):
            trainer.fit()
        assert int(trainer.state.timestamp.batch) == end // 2 + 1
        trainer.close()


@pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")
@pytest.mark.parametrize("kind", ["mpt with code", "llama"])
def test_on_the_hub_a_save_is_a_commit(kind: str, base: str, hub: Hub, tmp_path: Path) -> None:
    model = llama(base) if kind == "llama" else mpt(no_bias=False)
    checkpointer = HuggingFaceCheckpointer("hf://me/{run_name}", "2ba")
    run(model, checkpointer, HuggingFaceCheckpointer(str(tmp_path), "2ba"), end="4ba").fit()
    repo, here = hub.repos["me/run"], tmp_path / "huggingface" / "ba4"
    assert repo.visibility == "private" and repo.messages == ["initial commit", "ba2", "ba4"]
    assert repo.files() == {path.name: path.read_bytes() for path in here.iterdir()}
    loaded = AutoModelForCausalLM.from_pretrained(
        "me/run", cache_dir=tmp_path / "cache", trust_remote_code=kind != "llama"
    )
    assert torch.equal(logits(loaded), logits(model.model))


# Subclasses


def test_subclasses_change_what_is_saved(base: str, tmp_path: Path) -> None:
    class Mine(HuggingFaceCheckpointer):
        def transform_config(self, original_config: Any) -> Any:
            config = super().transform_config(original_config)
            config.max_position_embeddings = 31
            return config

        def transform_model_and_tokenizer(self, model: Any, tokenizer: Any) -> tuple[Any, Any]:
            with torch.no_grad():
                model.model.norm.weight.zero_()
            return model, None

        def save_additional_contents(self, state: Any, logger: Any, save_dir: str) -> None:
            Path(save_dir, "notes.txt").write_text(str(int(state.timestamp.batch)))

    model = llama(base)
    run(model, Mine(str(tmp_path), "2ba"), end="2ba").fit()
    folder = tmp_path / "huggingface" / "ba2"
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.config.max_position_embeddings == 31
    assert model.config.max_position_embeddings == 32
    assert not loaded.model.norm.weight.any() and model.model.model.norm.weight.all()
    assert (folder / "notes.txt").read_text() == "2"
    assert not (folder / "tokenizer.json").exists()


OWN_MODEL = """
from llmfoundry.models.mpt.modeling_mpt import MPTForCausalLM
from {package}.numbers_of_mine import FACTOR


class LouderMPT(MPTForCausalLM):
    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        if outputs.logits is not None:
            outputs.logits = outputs.logits * FACTOR
        return outputs
"""


def test_code_of_other_packages_goes_into_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "mine_of_the_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "numbers_of_mine.py").write_text("FACTOR = 3\n")
    (package / "louder_mpt.py").write_text(OWN_MODEL.format(package=package.name))
    monkeypatch.syspath_prepend(str(tmp_path))
    from mine_of_the_test.louder_mpt import LouderMPT  # type: ignore[import-not-found]

    model = mpt()
    model.model = LouderMPT(model.model.config)
    prefixes = ("llmfoundry", package.name)
    run(
        model, HuggingFaceCheckpointer(str(tmp_path), "2ba", flatten_imports=prefixes), end="2ba"
    ).fit()
    folder = tmp_path / "huggingface" / "ba2"
    assert "from .numbers_of_mine" in (folder / "louder_mpt.py").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert type(loaded).__name__ == "LouderMPT"
    assert torch.equal(logits(loaded), logits(model.model))


def test_the_configuration_forgets_the_run() -> None:
    checkpointer, model = HuggingFaceCheckpointer("folder", 1), mpt()
    config = model.model.config
    config.init_device, config.attn_config["attn_impl"] = "meta", "flash"
    config.ffn_config["moe_world_size"] = 4
    changed = checkpointer.transform_config(config)
    assert (changed.init_device, changed.attn_config["attn_impl"]) == ("cpu", "torch")
    assert changed.ffn_config["moe_world_size"] == 1
    assert config.init_device == "meta" and config.ffn_config["moe_world_size"] == 4


# Refusals


def test_settings_that_do_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as environment:
        environment.setenv("LLM_FOUNDRY_SAVE_FOLDER_HF_MAX_SHARD_SIZE", "big")
        with pytest.raises(ValueError, match="MAX_SHARD_SIZE='big' is no size"):
            run(mpt(), HuggingFaceCheckpointer("folder", 1))
    with pytest.raises(KeyError, match="precision='fp8'"):
        HuggingFaceCheckpointer("folder", 1, precision="fp8")
    with pytest.raises(ValueError, match="must be positive"):
        HuggingFaceCheckpointer("folder", 1, register_wait_seconds=0)
    with pytest.raises(ValueError, match="overwrite=False means nothing"):
        HuggingFaceCheckpointer("hf://me/model", 1, overwrite=False)
    with pytest.raises(ValueError, match="hf://owner/name"):
        HuggingFaceCheckpointer("hf://model", 1)
    with pytest.warns(UserWarning, match="final_register_only has no effect"):
        assert not HuggingFaceCheckpointer(
            "folder", 1, final_register_only=True
        ).final_register_only
    with pytest.raises(ValueError, match=r"\['task'\], without effect"):
        HuggingFaceCheckpointer("folder", 1, mlflow_logging_config={"task": "x"})
    with pytest.raises(ValueError, match="needs an MLflow logger"):
        run(mpt(), HuggingFaceCheckpointer("folder", 1, mlflow_registered_model_name="name"))
    with pytest.raises(ValueError, match="needs a HuggingFaceModel"):
        make_other_run("2ba", None, callbacks=[HuggingFaceCheckpointer("folder", 1)])
