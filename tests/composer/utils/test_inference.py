import warnings

import pytest
import torch

from composer.checkpoint.monolithic import write_checkpoint_file
from composer.models import ComposerClassifier
from composer.utils import (
    ExportFormat,
    export_for_inference,
    export_with_logger,
    quantize_dynamic,
)
from composer.utils.object_store.local_object_store import LocalObjectStore
from tests.launch import run_ranks

onnxruntime = pytest.importorskip("onnxruntime")


class Convolutions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(4, 10),
        )

    def forward(self, x):
        return self.body(x)


@pytest.fixture
def model():
    model = ComposerClassifier(Convolutions(), num_classes=10)
    model((torch.rand(8, 3, 8, 8), None))  # so that batch norm has seen something
    return model


@pytest.fixture
def batch():
    return torch.rand(4, 3, 8, 8), torch.randint(10, (4,))


def run_onnx(path, **inputs):
    session = onnxruntime.InferenceSession(str(path))
    return torch.as_tensor(session.run(None, {k: v.numpy() for k, v in inputs.items()})[0])


def answers(model, batch):
    return model.eval()(batch)


@pytest.mark.parametrize("as_call", [True, False])
def test_torch_export(model, batch, tmp_path, as_call):
    path = tmp_path / "new" / "model.pt2"
    sample = (batch, {}) if as_call else batch
    export_for_inference(model, "torch_export", str(path), sample_input=sample)
    assert model.training
    program = torch.export.load(path).module()
    torch.testing.assert_close(program(batch), answers(model, batch))


def test_onnx(model, batch, tmp_path):
    path = tmp_path / "model.onnx"
    export_for_inference(
        model,
        ExportFormat.ONNX,
        str(path),
        sample_input=(batch, {}),
        dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}},
    )
    session = onnxruntime.InferenceSession(str(path))
    assert [(v.name, v.shape) for v in session.get_inputs()] == [("input", ["batch", 3, 8, 8])]
    assert [(v.name, v.shape) for v in session.get_outputs()] == [("output", ["batch", 10])]
    longer = torch.rand(9, 3, 8, 8)
    torch.testing.assert_close(run_onnx(path, input=longer), answers(model, (longer, None)))


def test_names_version_and_axes_of_a_batch_with_names(tmp_path):
    class TwoInputs(torch.nn.Module):
        def forward(self, batch, scale, *, shift):
            return batch["a"] * scale + batch["b"] + shift

    batch = {"b": torch.rand(3, 2), "a": torch.rand(3, 2)}
    path = tmp_path / "model.onnx"
    export_for_inference(
        TwoInputs(),
        "onnx",
        str(path),
        sample_input=(batch, torch.tensor([2.0]), {"shift": torch.rand(3, 2)}),
        dynamic_axes={"a": [0], "b": {0: "n"}, "moved": {0: "n"}},
        input_names=["b", "a", "scale", "moved"],
        output_names=["c"],
        onnx_opset_version=21,
    )
    import onnx

    graph = onnx.load(path)
    assert graph.opset_import[0].version == 21
    assert [value.name for value in graph.graph.input] == ["b", "a", "scale", "moved"]
    inputs = {"a": torch.ones(5, 2), "b": torch.ones(5, 2), "moved": torch.ones(5, 2)}
    expected = torch.full((5, 2), 5.0)
    assert (run_onnx(path, scale=torch.tensor([3.0]), **inputs) == expected).all()


def test_unknown_axes_and_missing_samples_are_refused(model, batch, tmp_path):
    path = str(tmp_path / "x")
    with pytest.raises(ValueError, match=r"dynamic_axes names \['inptu'\]"):
        export_for_inference(
            model, "torch_export", path, sample_input=(batch, {}), dynamic_axes={"inptu": [0]}
        )
    for save_format in ("onnx", "torch_export"):
        with pytest.raises(ValueError, match=f"sample_input is needed to export to {save_format}"):
            export_for_inference(model, save_format, path)
    with pytest.raises(ValueError, match="not found in ExportFormat"):
        export_for_inference(model, "tensorrt", path)
    assert not list(tmp_path.iterdir())


def test_torchscript_still_works_and_says_that_it_is_deprecated(model, batch, tmp_path, caplog):
    path = str(tmp_path / "model.pt")
    export_for_inference(model, "torchscript", path, sample_input=(batch, {}))
    assert "use 'torch_export'" in caplog.text
    loaded = torch.jit.load(path)
    torch.testing.assert_close(loaded(batch), answers(model, batch))
    export_for_inference(Convolutions(), "torchscript", path)  # scripted: needs no sample
    assert torch.jit.load(path)(batch[0]).shape == (4, 10)

    class CannotBeScripted(torch.nn.Module):
        def forward(self, *x):
            return {f"{key}": value for key, value in enumerate(x)}

    with pytest.raises(RuntimeError, match="give sample_input"):
        export_for_inference(CannotBeScripted(), "torchscript", path)


def test_a_compiled_model_is_exported_plain(model, batch, tmp_path):
    expected = answers(model, batch)
    for compiled in (torch.compile(model, backend="eager"), model):
        model.compile(backend="eager")
        export_for_inference(
            compiled, "torch_export", str(tmp_path / "m"), sample_input=(batch, {})
        )
        program = torch.export.load(tmp_path / "m")
        assert not [name for name in program.state_dict if "_orig_mod" in name]
        torch.testing.assert_close(program.module()(batch), expected)


def test_surgery_weights_and_transforms_in_this_order(model, batch, tmp_path):
    checkpoint = str(tmp_path / "ep1-rank0.pt")
    trained = ComposerClassifier(torch.nn.Sequential(Convolutions(), torch.nn.Linear(10, 10)), 10)
    write_checkpoint_file({"state": {"model": trained.state_dict()}}, checkpoint)

    def add_layer(model):  # as some functions of composer.functional, it changes in place
        model.module = torch.nn.Sequential(model.module, torch.nn.Linear(10, 10))

    path = str(tmp_path / "model.pt2")
    settings = {"sample_input": (batch, {}), "load_path": checkpoint}
    export_for_inference(
        model,
        "torch_export",
        path,
        surgery_algs=add_layer,
        load_strict=True,
        transforms=[quantize_dynamic],
        **settings,
    )
    out = torch.export.load(path).module()(batch)
    torch.testing.assert_close(out, answers(trained, batch), rtol=0.05, atol=0.02)
    with pytest.raises(RuntimeError, match="Error\\(s\\) in loading state_dict"):
        export_for_inference(model, "torch_export", path, load_strict=True, **settings)
    write_checkpoint_file({"weights": {}}, checkpoint)
    with pytest.raises(ValueError, match="has no model in it"):
        export_for_inference(model, "torch_export", path, **settings)


def test_weights_of_a_checkpoint_in_a_store_that_fit_only_in_part(model, batch, tmp_path, caplog):
    weights = model.state_dict() | {"other": torch.ones(1)}
    write_checkpoint_file({"state": {"model": weights}}, str(tmp_path / "ep1.pt"))
    export_for_inference(
        ComposerClassifier(Convolutions(), 10),
        "torch_export",
        str(tmp_path / "m.pt2"),
        sample_input=(batch, {}),
        load_path=str(tmp_path / "ep1.pt"),
        load_object_store=LocalObjectStore(),
    )
    assert "unknown ['other']" in caplog.text
    program = torch.export.load(tmp_path / "m.pt2").module()
    torch.testing.assert_close(program(batch), answers(model, batch))


def test_quantized_weights_are_small_and_close(tmp_path):
    shared = torch.nn.Linear(256, 256)
    model = torch.nn.Sequential(shared, torch.nn.ReLU(), shared).eval()
    quantized = quantize_dynamic(model)
    assert quantized is not model and isinstance(model[0], torch.nn.Linear)
    assert quantized[0] is quantized[2] and quantized[0].weight.dtype is torch.int8
    x = torch.rand(4, 256)
    torch.testing.assert_close(quantized(x), model(x), rtol=0.05, atol=0.02)
    sizes = {}
    for name, transforms in (("full", None), ("small", quantize_dynamic)):
        path = tmp_path / name
        export_for_inference(model, "onnx", str(path), sample_input=x, transforms=transforms)
        sizes[name] = path.stat().st_size
        torch.testing.assert_close(run_onnx(path, input=x), model(x), rtol=0.05, atol=0.02)
    assert sizes["small"] < sizes["full"] / 3
    assert quantize_dynamic(shared, inplace=True).out_features == 256
    assert quantize_dynamic(model, inplace=True) is model


def test_a_result_that_differs_is_not_saved(tmp_path):
    class Random(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    with pytest.raises(RuntimeError, match="does not return what the model returns"):
        export_for_inference(
            Random(), "torch_export", str(tmp_path / "m"), sample_input=torch.ones(2)
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("large", ["a column", "another output"])
def test_large_numbers_do_not_hide_differences_in_others(tmp_path, large, dtype):
    class Wrong(torch.nn.Module):
        def forward(self, x):
            y = x + 0.1 if torch.compiler.is_compiling() else x
            if large == "a column":
                return torch.cat([y, torch.full_like(y[:, :1], torch.finfo(dtype).min)], 1)
            return y, torch.full_like(y, 3e4)

    sample = torch.linspace(-1, 1, 12, dtype=dtype).view(3, 4)
    with pytest.raises(RuntimeError, match="does not return what the model returns"):
        export_for_inference(Wrong(), "torch_export", str(tmp_path / "m"), sample_input=sample)


@pytest.mark.parametrize("save_format", ["torch_export", "onnx", "torchscript"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_further_inputs_are_compared_too(tmp_path, save_format):
    class TakesAnotherWay(torch.nn.Module):
        def forward(self, x):
            traced = torch.jit.is_scripting() or torch.compiler.is_compiling()
            return x if traced or x.sum() < 100 else -x

    path = tmp_path / "m"
    settings = {"sample_input": torch.ones(2)}
    with pytest.raises(RuntimeError, match=r"shapes \[\(2,\)\], so it was not saved"):
        further = [torch.ones(2), torch.full((2,), 100.0)]
        export_for_inference(
            TakesAnotherWay(), save_format, str(path), further_inputs=further, **settings
        )
    assert not path.exists()
    export_for_inference(
        TakesAnotherWay(), save_format, str(path), further_inputs=[torch.zeros(2)], **settings
    )
    assert path.exists()


def test_addresses_and_stores(model, batch, tmp_path):
    sample = {"sample_input": (batch, {})}
    export_for_inference(model, "torch_export", f"file://{tmp_path}/a.pt2", **sample)
    store = LocalObjectStore()
    export_for_inference(model, "torch_export", f"{tmp_path}/f/b.pt2", store, **sample)
    assert (tmp_path / "a.pt2").exists() and (tmp_path / "f/b.pt2").exists()


class Uploads:
    def __init__(self, can):
        self.can = can
        self.seen = {}

    def has_file_upload_destination(self):
        return self.can

    def upload_file(self, remote_file_name, file_path, *, overwrite=False):
        self.seen[remote_file_name] = torch.export.load(file_path)


def test_a_logger_uploads_if_it_can(model, batch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for can in (True, False):
        logger = Uploads(can)
        export_with_logger(model, "torch_export", "run/m.pt2", logger, sample_input=(batch, {}))
        assert list(logger.seen) == (["run/m.pt2"] if can else [])
        assert (tmp_path / "run/m.pt2").exists() is not can


def _export_wrapped(folder):
    model = torch.nn.Linear(2, 2)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    with pytest.raises(ValueError, match="wrapped for DDP"):
        export_for_inference(wrapped, "torch_export", folder + "/m", sample_input=torch.ones(1, 2))
    sharded = torch.distributed.fsdp.fully_shard(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="sharded by FSDP"):
        export_for_inference(sharded, "torch_export", folder + "/m", sample_input=torch.ones(1, 2))
    path = f"{folder}/rank{torch.distributed.get_rank()}.pt2"
    export_for_inference(model, "torch_export", path, sample_input=torch.ones(1, 2))


def test_rank_zero_exports_what_is_not_wrapped(tmp_path):
    run_ranks(_export_wrapped, 2, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.pt2"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_hugging_face_models(kind, tmp_path):
    import transformers

    from composer.models import HuggingFaceModel

    size = {"vocab_size": 50, "num_labels": 3}
    if kind == "bert":
        width = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.BertConfig(**size, **width, intermediate_size=32)
        inner = transformers.BertForSequenceClassification(config)
    else:
        config = transformers.GPT2Config(**size, n_embd=16, n_layer=2, n_head=2)
        inner = transformers.GPT2LMHeadModel(config)
    model = HuggingFaceModel(inner.eval(), use_logits=True)
    batch = {
        "input_ids": torch.randint(50, (2, 8)),
        "attention_mask": torch.ones(2, 8, dtype=torch.long),
    }
    expected = inner(**batch).logits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for save_format in ("torch_export", "onnx"):
            names = {"input_names": list(batch), "output_names": ["logits"]}
            export_for_inference(
                model, save_format, str(tmp_path / save_format), sample_input=(batch, {}), **names
            )
    exported = torch.export.load(tmp_path / "torch_export").module()(batch)
    torch.testing.assert_close(exported["logits"], expected)
    torch.testing.assert_close(run_onnx(tmp_path / "onnx", **batch), expected)
    assert inner.config.use_cache
