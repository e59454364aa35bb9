"""In and out again: bits, logits and tokenizer files are those of the folder; the trainer loads."""

import filecmp
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from composer import Trainer
from composer.models import HuggingFaceModel
from composer.utils.object_store.s3_object_store import S3ObjectStore
from llmfoundry.command_utils.convert_composer_to_hf import (
    write_huggingface_pretrained_from_composer_checkpoint as write_hf,
)
from llmfoundry.command_utils.convert_hf_to_composer import (
    write_composer_checkpoint_from_huggingface as write_composer,
)
from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM
from llmfoundry.utils import get_hf_tokenizer_from_composer_state_dict
from tests.composer.utils.object_store.faults import Proxy
from tests.llmfoundry.models.hf import tiny
from tests.llmfoundry.models.hf.fake_hub import FakeHub, serving
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _folder(kind: str, path: Path, precision: str = "fp32", **changes: Any) -> Path:
    model = tiny.build(kind, **{"vocab_size": 300, **changes}).to(PRECISIONS[precision])
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(path)
    tokenizer = train_tokenizer(eos=True)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}\n"
    tokenizer.save_pretrained(path)
    # As the hub's folders are: laid out otherwise than this program would.
    text = (path / "tokenizer.json").read_text("utf-8")
    (path / "tokenizer.json").write_text(json.dumps(json.loads(text), indent=1) + "\r\n")
    (path / "special_tokens_map.json").write_text('{ "bos_token": "<s>" }')
    (path / "merges.txt").write_bytes("#version\u2028: 0.2\r\na b".encode())
    (path / "vocab.json").write_text("{}")
    return path


def _logits(folder: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model.eval()(tiny.rows()["input_ids"]).logits


CASES = [(kind, "fp32") for kind in tiny.KINDS]
CASES += [("llama_tied", "bf16"), ("qwen3", "fp16"), ("mpt", "bf16")]


@pytest.mark.parametrize(("kind", "precision"), CASES)
def test_round_trip(kind: str, precision: str, tmp_path: Path) -> None:
    folder, back = _folder(kind, tmp_path / "hf", precision), tmp_path / "back"
    write_composer(str(folder), str(tmp_path / "c.pt"))
    write_hf(str(tmp_path / "c.pt"), back, output_precision=precision)
    before, after = (load_file(f / "model.safetensors") for f in (folder, back))
    assert before.keys() == after.keys()
    assert {weight.dtype for weight in after.values()} == {PRECISIONS[precision]}
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert torch.equal(_logits(back), _logits(folder))
    tokenizer = [p.name for p in folder.iterdir() if "model" not in p.name]
    tokenizer = [name for name in tokenizer if name != "config.json" and "generation" not in name]
    assert len(tokenizer) > 3
    assert filecmp.cmpfiles(folder, back, tokenizer, shallow=False)[0] == tokenizer
    configs = [json.loads((f / "config.json").read_text()) for f in (folder, back)]
    for config in configs:
        config.pop("learned_pos_emb", None)  # which transformers' MPT does not have
    assert configs[0] == configs[1]
    generation = [json.loads((f / "generation_config.json").read_text()) for f in (folder, back)]
    assert generation[0] == generation[1] and generation[0]["max_new_tokens"] == 7


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("kind", ["qwen3", "mpt"])
def test_the_trainer_loads_it(kind: str, weights_only: bool, tmp_path: Path) -> None:
    folder = _folder(kind, tmp_path / "hf")
    write_composer(str(folder), str(tmp_path / "c.pt"))
    if kind == "mpt":
        settings = {"attn_config": {"alibi": True, "attn_impl": "torch"}, "no_bias": True}
        sizes = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 64, "vocab_size": 300}
        model: HuggingFaceModel = ComposerMPTCausalLM(train_tokenizer(), **settings, **sizes)
    else:
        model = HuggingFaceModel(tiny.build(kind, 11, vocab_size=300), train_tokenizer())
    batch = tiny.rows()
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.AdamW(model.parameters()),
        train_dataloader=torch.utils.data.DataLoader([{k: v[0] for k, v in batch.items()}] * 4, 2),
        max_duration="2ba",
        load_path=str(tmp_path / "c.pt"),
        load_weights_only=weights_only,
        progress_bar=False,
    )
    with torch.no_grad():
        logits = model.model.eval()(batch["input_ids"]).logits
    torch.testing.assert_close(logits, _logits(folder), atol=1e-6, rtol=1e-5)
    model.train()
    trainer.fit()
    assert trainer.state.timestamp.batch == 2
    trainer.close()


def test_the_modelling_code_of_a_folder_is_ours(golden: Path, tmp_path: Path) -> None:
    """A folder of the old converter, whose code is this project's model: B91's keys and all."""
    old = golden / "checkpoints" / "hf_folder"
    folder = tmp_path / "hf"
    folder.mkdir()
    for path in old.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["attn_config"] |= {"prefix_lm": False, "attn_impl": "triton"}
    config["init_config"] |= {"verbose": 0}
    (folder / "config.json").write_text(json.dumps(config | {"verbose": 0}))
    with pytest.warns(Warning, match="triton is read as torch"):
        described = write_composer(str(folder), str(tmp_path / "c.pt"))
    assert described["model"]["config"]["class"].endswith("MPTForCausalLM")
    write_hf(str(tmp_path / "c.pt"), tmp_path / "back")
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    again = write_composer(str(tmp_path / "back"), str(tmp_path / "again.pt"))
    keys = ("transformers_version", "dtype", "_name_or_path")
    for each in (described, again):
        for key in keys:
            each["model"]["config"]["content"].pop(key, None)
    content = [each["model"]["config"]["content"] for each in (described, again)]
    assert {k for k in content[0] if content[0][k] != content[1].get(k)} == set()


def test_B93_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    folder = _folder("llama", tmp_path / "hf")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm_g.weight"] = weights.pop("model.norm.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RuntimeError, match=r"model\.norm\.weight.*model\.norm_g\.weight"):
        write_composer(str(folder), str(tmp_path / "c.pt"))
    assert not (tmp_path / "c.pt").exists()


def test_weights_wider_than_the_configuration_says_stay_as_they_are(tmp_path: Path) -> None:
    folder = _folder("llama", tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    write_composer(str(folder), str(tmp_path / "c.pt"))
    saved = torch.load(tmp_path / "c.pt", weights_only=False)["state"]["model"]
    weights = load_file(folder / "model.safetensors")
    assert all(torch.equal(saved[f"model.{name}"], weight) for name, weight in weights.items())


def test_the_old_form_of_files(tmp_path: Path) -> None:
    folder = _folder("gpt2", tmp_path / "hf", "bf16")
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    write_composer(str(folder), str(tmp_path / "c.pt"))
    saved = torch.load(tmp_path / "c.pt", weights_only=False)["state"]
    assert all(torch.equal(saved["model"][f"model.{n}"], weight) for n, weight in weights.items())
    tokenizer = get_hf_tokenizer_from_composer_state_dict(
        {"state": saved}, trust_remote_code=False, tokenizer_save_dir=str(tmp_path / "tokenizer")
    )
    assert tokenizer is not None and tokenizer("the cat")["input_ids"]
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match="has no weights"):
        write_composer(str(folder), str(tmp_path / "other.pt"))


def test_a_model_with_code_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    folder = _folder("llama", tmp_path / "hf")
    (folder / "own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n\n\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n\n\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n\n"
        "    def forward(self, *args, **kwargs):\n"
        "        outputs = super().forward(*args, **kwargs)\n"
        "        outputs.logits = outputs.logits * 3\n"
        "        return outputs\n"
    )
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    config |= {"model_type": "own", "architectures": ["OwnForCausalLM"], "auto_map": auto_map}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        write_composer(str(folder), str(tmp_path / "c.pt"))
    write_composer(str(folder), str(tmp_path / "c.pt"), trust_remote_code=True)
    write_hf(str(tmp_path / "c.pt"), tmp_path / "back", trust_remote_code=True)
    assert (tmp_path / "back" / "own.py").read_text() == (folder / "own.py").read_text()
    models = [
        transformers.AutoModelForCausalLM.from_pretrained(each, trust_remote_code=True).eval()
        for each in (folder, tmp_path / "back")
    ]
    tokens = tiny.rows()["input_ids"]
    assert torch.equal(models[0](tokens).logits, models[1](tokens).logits)
    assert type(models[1]).__name__ == "OwnForCausalLM"


_ALIKE = ("onnx/model.onnx", "adapter_model.safetensors", "consolidated.safetensors", "m.gguf")


@pytest.mark.parametrize("form", ["bin", "both"])
def test_of_a_hub(form: str, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are fetched in one form, and once: what is in the cache needs no connection."""
    folder = hub.folder
    weights = load_file(folder / "model.safetensors")
    index: dict[str, Any] = {"metadata": {}, "weight_map": {}}
    for number, names in enumerate((list(weights)[::2], list(weights)[1::2]), start=1):
        name = f"pytorch_model-0000{number}-of-00002.bin"
        torch.save({each: weights[each] for each in names}, folder / name)
        index["weight_map"] |= dict.fromkeys(names, name)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    if form == "bin":
        (folder / "model.safetensors").unlink()
    for name in (*_ALIKE, "original/model.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("of another program")
    if form == "bin":
        (folder / "adapter_model.safetensors").unlink()
    write_composer("tiny/model", str(tmp_path / "c.pt"))
    fetched = {name for name in hub.downloads if "model" in name or "consolidated" in name}
    ours = {*index["weight_map"].values(), "pytorch_model.bin.index.json"}
    assert fetched - {"adapter_model.safetensors"} == (
        ours if form == "bin" else {"model.safetensors"}
    )
    hub.downloads.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    write_composer("tiny/model", str(tmp_path / "offline.pt"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    write_composer("tiny/model", str(tmp_path / "cut.pt"))
    assert not hub.downloads
    for name in ("c", "offline", "cut"):
        saved = torch.load(tmp_path / f"{name}.pt", weights_only=False)["state"]["model"]
        assert all(torch.equal(saved[f"model.{n}"], weight) for n, weight in weights.items())


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with serving(_folder("llama", tmp_path / "repo")) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server


def test_to_a_store(s3: Proxy, tmp_path: Path) -> None:
    folder = _folder("llama", tmp_path / "hf")
    write_composer(str(folder), "s3://bucket/start/llama.pt")
    S3ObjectStore("bucket").download_object("start/llama.pt", tmp_path / "c.pt")
    write_hf(str(tmp_path / "c.pt"), tmp_path / "back")
    assert torch.equal(_logits(tmp_path / "back"), _logits(folder))
    for file in folder.iterdir():
        S3ObjectStore("bucket").upload_object(f"models/llama/{file.name}", file)
    write_composer("s3://bucket/models/llama", str(tmp_path / "from_store.pt"))
    first, second = (
        torch.load(tmp_path / name, weights_only=False)["state"]["model"]
        for name in ("c.pt", "from_store.pt")
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    for path in ("s3://bucket/start/llama.pt", str(tmp_path / "c.pt")):
        with pytest.raises(FileExistsError):
            write_composer(str(folder), path)


PROGRAM = """
import sys, threading, time
from llmfoundry.command_utils.convert_hf_to_composer import (
    write_composer_checkpoint_from_huggingface as write_composer,
)
def held():
    return {
        name: int(value.split()[0]) * 1024
        for name, _, value in (line.partition(":") for line in open("/proc/self/status"))
        if name == "RssAnon"
    }["RssAnon"]
start = peak = held()
def watch():
    global peak
    while True:
        peak = max(peak, held())
        time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
write_composer(*sys.argv[1:])
print(peak - start)
"""


@pytest.mark.slow
def test_weights_go_from_file_to_file(tmp_path: Path) -> None:
    """What is in memory of a mapped file the system takes back when it likes: it is not counted."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4}
    folder = _folder("llama", tmp_path / "hf", head_dim=64, num_attention_heads=16, **sizes)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(tmp_path / "c.pt")],
        capture_output=True,
        text=True,
        check=True,
    )
    size = (folder / "model.safetensors").stat().st_size
    assert size > 2e8
    assert int(done.stdout.splitlines()[-1]) < 0.25 * size


@pytest.mark.slow
def test_round_trip_of_smollm2(tmp_path: Path) -> None:
    folder, back = Path(__file__).parents[3] / "data" / "smollm2", tmp_path / "back"
    if not (folder / "config.json").exists():
        pytest.skip("data/smollm2 is not there: python scripts/misc/fetch_smollm2.py makes it")
    names = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
    before = load_file(folder / "model.safetensors")
    write_composer(str(folder), str(tmp_path / "c.pt"))
    dtype = next(iter(before.values())).dtype
    write_hf(str(tmp_path / "c.pt"), back, output_precision=names[dtype])
    after = load_file(back / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {weight.dtype for weight in after.values()} == {dtype}
    assert torch.equal(_logits(back), _logits(folder))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        assert (back / name).read_bytes() == (folder / name).read_bytes(), name
