"""Configuration and tokenizer travel in checkpoints and come back whole."""

import copy
import datetime
import os

import pytest
import torch

from composer.checkpoint.convert import convert_checkpoint
from composer.models import (
    HuggingFaceModel,
    write_huggingface_pretrained_from_composer_checkpoint,
)
from composer.models.hf_metadata import describe_tokenizer, load_tokenizer_from_saved_state
from composer.models.huggingface import get_hf_config_from_composer_state_dict


@pytest.fixture
def model(make_model, make_tokenizer):
    tokenizer = make_tokenizer(model_max_length=32)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return HuggingFaceModel(make_model("gpt2"), tokenizer)


def _checkpoint(model, tmp_path):
    state = {
        "state": {
            "model": model.state_dict(),
            "integrations": {"huggingface": model.get_metadata()},
            "timestamp": {"Timestamp": {"total_wct": datetime.timedelta(seconds=1)}},
        },
        "rng": [],
    }
    path = tmp_path / "checkpoint.pt"
    torch.save(state, path)
    return state, str(path)


def test_metadata_is_plain_data(model):
    metadata = model.get_metadata()
    config = metadata["model"]["config"]
    assert config["file_extension"] == ".json"
    assert config["class"] == "transformers.models.gpt2.modeling_gpt2.GPT2LMHeadModel"
    assert config["content"] == model.config.to_dict()
    files = metadata["tokenizer"]
    assert {"tokenizer.json", "tokenizer_config.json"} <= set(files)
    assert files["chat_template.jinja"]["content"] == model.tokenizer.chat_template
    for name, saved in files.items():
        assert saved["file_extension"] == os.path.splitext(name)[1]
    without = HuggingFaceModel(model.model).get_metadata()
    assert without["tokenizer"] == {} and without["model"] == metadata["model"]


def test_tokenizer_comes_back(model, tmp_path):
    metadata = model.get_metadata()
    for folder in (None, tmp_path / "tokenizer"):
        tokenizer = HuggingFaceModel.load_huggingface_tokenizer_from_saved_state(
            metadata, tokenizer_save_dir=folder
        )
        assert tokenizer.get_vocab() == model.tokenizer.get_vocab()
        text = "w3 w9 unknown w4"
        assert tokenizer(text)["input_ids"] == model.tokenizer(text)["input_ids"]
        assert tokenizer.chat_template == model.tokenizer.chat_template
        assert tokenizer.pad_token_id == 1 and tokenizer.model_max_length == 32
    assert HuggingFaceModel.load_huggingface_tokenizer_from_saved_state({"tokenizer": {}}) is None


def test_files_of_all_kinds(tmp_path):
    class Saves:
        def save_pretrained(self, folder):
            for name, content in (
                ("vocab.txt", "a\nb c\n"),
                ("code.py", "x = 1\n"),
                ("more/t.jinja", "{{ x }}"),
            ):
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as file:
                    file.write(content)
            with open(os.path.join(folder, "spiece.model"), "wb") as file:
                file.write(b"\x00\x01")

    files = describe_tokenizer(Saves())
    assert files["vocab.txt"]["content"] == ["a", "b c"]
    assert files["spiece.model"]["content"] == b"\x00\x01"
    assert files["more/t.jinja"]["content"] == "{{ x }}"
    with pytest.raises((OSError, ValueError)):  # they are no tokenizer, but they are written
        load_tokenizer_from_saved_state({"tokenizer": files}, tokenizer_save_dir=tmp_path)
    assert (tmp_path / "vocab.txt").read_text() == "a\nb c\n"
    assert (tmp_path / "code.py").read_text() == "x = 1\n"

    class SavesMore(Saves):
        def save_pretrained(self, folder):
            with open(os.path.join(folder, "weights.bin"), "wb") as file:
                file.write(b"1")

    with pytest.raises(ValueError, match="weights.bin"):
        describe_tokenizer(SavesMore())


def test_a_file_may_not_leave_its_folder(model, tmp_path):
    metadata = copy.deepcopy(model.get_metadata())
    metadata["tokenizer"]["../evil.json"] = {"file_extension": ".json", "content": {}}
    with pytest.raises(ValueError, match="points out of its folder"):
        load_tokenizer_from_saved_state(metadata, tokenizer_save_dir=tmp_path / "in")
    assert not (tmp_path / "evil.json").exists()


def test_config_with_overrides(model, tmp_path):
    state, _ = _checkpoint(model, tmp_path)
    config = get_hf_config_from_composer_state_dict(state, {"n_layer": 5})
    assert (config.n_layer, config.n_embd, config.model_type) == (5, 16, "gpt2")
    with pytest.raises(ValueError, match="state/integrations/huggingface"):
        get_hf_config_from_composer_state_dict({"state": {}})
    unknown = copy.deepcopy(state)
    content = unknown["state"]["integrations"]["huggingface"]["model"]["config"]["content"]
    content["model_type"] = "no_such_model"
    content.pop("_name_or_path", None)
    with pytest.raises(ValueError, match="no_such_model"):
        get_hf_config_from_composer_state_dict(unknown)


def test_model_and_tokenizer_of_a_checkpoint(model, tmp_path):
    import transformers

    _, path = _checkpoint(model, tmp_path)
    for wanted in (
        None,
        transformers.GPT2LMHeadModel,
        transformers.AutoModelForCausalLM,
        "transformers.AutoModelForCausalLM",
    ):
        built, tokenizer = HuggingFaceModel.hf_from_composer_checkpoint(
            path, wanted, model_config_kwargs={"n_layer": 1}
        )
        assert type(built) is transformers.GPT2LMHeadModel
        assert built.config.n_layer == 1
        assert tokenizer.get_vocab() == model.tokenizer.get_vocab()
    with pytest.raises(ValueError, match="dotted path"):
        HuggingFaceModel.hf_from_composer_checkpoint(path, "nonsense")
    with pytest.raises(AttributeError):
        HuggingFaceModel.hf_from_composer_checkpoint(path, "transformers.NoSuchModel")
    with pytest.raises(ValueError, match="neither a transformers model"):
        HuggingFaceModel.hf_from_composer_checkpoint(path, "os.system")


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "t5"])
def test_a_folder_for_transformers(kind, make_model, make_tokenizer, text_batch, tmp_path):
    import transformers

    model = HuggingFaceModel(make_model(kind), make_tokenizer())
    _, path = _checkpoint(model, tmp_path)
    kept = tmp_path / "kept.pt"
    folder = tmp_path / "folder"
    write_huggingface_pretrained_from_composer_checkpoint(path, folder, kept)
    assert kept.exists()
    assert {"config.json", "pytorch_model.bin", "tokenizer.json"} <= set(os.listdir(folder))
    loaded = type(model.model).from_pretrained(folder)
    torch.testing.assert_close(loaded(**text_batch).logits, model(text_batch).logits)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.get_vocab() == model.tokenizer.get_vocab()
    # A folder of shards gives the same.
    convert_checkpoint(path, str(tmp_path / "shards"))
    write_huggingface_pretrained_from_composer_checkpoint(str(tmp_path / "shards"), tmp_path / "b")
    for name in ("config.json", "tokenizer.json"):
        assert (tmp_path / "b" / name).read_bytes() == (folder / name).read_bytes()
    weights, others = (torch.load(f / "pytorch_model.bin") for f in (folder, tmp_path / "b"))
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    built, _ = HuggingFaceModel.hf_from_composer_checkpoint(str(tmp_path / "shards"))
    assert type(built) is type(model.model)


def test_a_folder_needs_a_tokenizer(make_model, tmp_path):
    _, path = _checkpoint(HuggingFaceModel(make_model("gpt2")), tmp_path)
    with pytest.raises(ValueError, match="holds no tokenizer"):
        write_huggingface_pretrained_from_composer_checkpoint(path, tmp_path / "folder")
    # The path itself may be given as the place to keep: nothing is lost.
    HuggingFaceModel.hf_from_composer_checkpoint(path, local_checkpoint_save_location=path)
    assert os.path.getsize(path) > 0
    with pytest.raises(FileNotFoundError, match="no .metadata"):
        HuggingFaceModel.hf_from_composer_checkpoint(str(tmp_path))


def test_a_model_that_transformers_would_take_for_another_is_refused(make_tokenizer, tmp_path):
    from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
    from llmfoundry.models.mpt.config import MPTConfig

    config = MPTConfig(d_model=16, n_heads=2, n_layers=1, max_seq_len=8, vocab_size=64)
    model = HuggingFaceModel(MPTForCausalLM(config), make_tokenizer())
    state, path = _checkpoint(model, tmp_path)
    assert type(get_hf_config_from_composer_state_dict(state)) is MPTConfig
    with pytest.raises(ValueError, match="model_type='mpt'.*converter"):
        write_huggingface_pretrained_from_composer_checkpoint(path, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    built, _ = HuggingFaceModel.hf_from_composer_checkpoint(path)
    assert type(built) is MPTForCausalLM
