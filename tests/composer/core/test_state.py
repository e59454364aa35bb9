"""State: time, data, and what goes into a checkpoint and comes out of it."""

import datetime
import warnings

import pytest
import torch
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset

from composer.core.duration import Time
from composer.core.precision import Precision
from composer.core.serializable import Serializable
from composer.core.state import State
from composer.core.timestamp import Timestamp
from composer.devices.device_cpu import DeviceCPU
from composer.utils.parallelism import FSDP2Config, FSDPConfig, TPConfig

KEYS = [
    "model",
    "optimizers",
    "schedulers",
    "algorithms",
    "callbacks",
    "scaler",
    "timestamp",
    "rank_zero_seed",
    "run_name",
    "dataset_state",
    "integrations",
    "metadata",
]


class Recorder(Serializable):
    """A plug-in of any kind, with a state."""

    def __init__(self, value=0):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Stranger(Recorder):
    """A plug-in that the other run does not have."""


def a_model():
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
    )


def a_state(**kwargs):
    model = kwargs.pop("model", None) or a_model()
    kwargs.setdefault("max_duration", "4ep")
    return State(model, 17, kwargs.pop("run_name", "run"), DeviceCPU(), **kwargs)


def a_trained_state(**kwargs):
    state = a_state(**kwargs)
    optimizer = torch.optim.AdamW(state.model.parameters(), lr=0.1)
    state.optimizers = optimizer
    state.schedulers = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    for _ in range(2):
        state.model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        state.schedulers[0].step()
        state.advance_batch(5, 50, datetime.timedelta(seconds=1))
    return state


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b


class TestTime:
    def test_advancing(self):
        state = a_state()
        assert state.previous_timestamp is None
        state.advance_batch(4, 40, datetime.timedelta(seconds=2))
        assert state.previous_timestamp == Timestamp()
        assert state.timestamp.sample == 4 and state.timestamp.token == 40
        state.advance_epoch()
        assert state.previous_timestamp.batch_in_epoch == 1
        assert state.timestamp.batch_in_epoch == 0 and state.timestamp.epoch == 1
        state.advance_iteration()
        assert state.timestamp.iteration == 1 and state.timestamp.epoch_in_iteration == 0

    @pytest.mark.parametrize("given", ["2ep", 2, Time(2, "ep")])
    def test_max_duration(self, given):
        assert a_state(max_duration=given).max_duration == Time(2, "ep")

    def test_max_duration_is_no_fraction(self):
        with pytest.raises(ValueError, match="fraction of itself"):
            a_state(max_duration="0.5dur")

    def test_elapsed(self):
        assert a_state(max_duration=None).get_elapsed_duration() is None
        state = a_state(max_duration="4ba")
        state.advance_batch(1, 1)
        assert state.get_elapsed_duration() == Time(0.25, "dur")

    @pytest.mark.parametrize(
        "duration, expected", [("9ep", "1ba"), (None, "1ba"), ("9sp", "4sp"), ("9tok", "8tok")]
    )
    def test_stopping(self, duration, expected):
        state = a_state(max_duration=duration)
        state.advance_batch(4, 8)
        state.stop_training()
        assert state.max_duration == expected
        assert state.get_elapsed_duration() == 1.0

    def test_stopping_before_the_first_batch(self):
        state = a_state()
        state.stop_training()
        assert state.max_duration == "0ba"
        assert state.get_elapsed_duration() == 1.0

    def test_iteration_length(self):
        state = a_state()
        state._iteration_length = "3tok"
        assert state._iteration_length == Time(3, "tok")
        with pytest.raises(NotImplementedError, match="epochs or tokens"):
            state._iteration_length = "3ba"
        state._iteration_length = None
        assert state._iteration_length is None


class TestData:
    def test_dataloader(self):
        state = a_state()
        assert state.dataloader is None and state.dataloader_len is None
        with pytest.raises(ValueError, match="dataloader_label"):
            state.set_dataloader([1])
        state.set_dataloader([1, 2, 3], "train")
        assert state.dataloader_label == "train" and state.dataloader_len == "3ba"
        state.set_dataloader([1, 2, 3], "train", 2)
        assert state.dataloader_len == "2ba"
        state.dataloader_len = Time(1, "ba")
        assert state.dataloader_len == 1
        with pytest.warns(UserWarning, match="DataloaderNumBatchesWarning"):
            state.dataloader_len = 9
        assert state.dataloader_len == 3
        state.set_dataloader(iter([]), "endless")
        assert state.dataloader_len is None
        state.dataloader_len = 5
        assert state.dataloader_len == 5
        state.set_dataloader()
        with pytest.raises(RuntimeError, match="without a dataloader"):
            state.dataloader_len = 1

    def test_batch_items(self):
        state = a_state()
        state.batch = (1, 2)
        state.batch_set_item(0, 5)
        assert state.batch == (5, 2) and state.batch_get_item(0) == 5

    def test_lists_keep_their_identity(self):
        state = a_state(callbacks=[Recorder()])
        for name in ("callbacks", "algorithms", "schedulers", "optimizers", "evaluators"):
            held = getattr(state, name)
            setattr(state, name, [Stranger()])
            assert getattr(state, name) is held and len(held) == 1

    def test_b39_a_dataset_takes_its_position_once(self):
        class Dataset(TensorDataset):
            def __init__(self):
                super().__init__(torch.zeros(8, 3))
                self.taken = []

            def state_dict(self, num_samples, from_beginning):
                return {"sample": num_samples, "from_beginning": from_beginning}

            def load_state_dict(self, state):
                self.taken.append(state)

        first = Dataset()
        state = a_state(train_dataloader=DataLoader(first, batch_size=2))
        assert first.taken == []
        state.advance_batch(2, 0)
        saved = state.state_dict()
        assert saved["dataset_state"] == {
            "train": {"sample": 2, "from_beginning": True},
            "eval": {},
        }
        first, second, late = Dataset(), Dataset(), Dataset()
        resumed = a_state(train_dataloader=DataLoader(first, batch_size=2))
        resumed.load_state_dict(saved)
        assert resumed.dataset_resumption == {"train": True}
        resumed.train_dataloader = DataLoader(first, batch_size=2)
        resumed.train_dataloader = DataLoader(second, batch_size=2)  # what is trained on after all
        assert first.taken == second.taken == [{"sample": 2, "from_beginning": True}]
        resumed.train_dataloader = DataLoader(TensorDataset(torch.zeros(8, 3)), batch_size=2)
        assert not resumed.dataset_resumption  # its batches are passed over one by one
        resumed.train_dataloader = DataLoader(second, batch_size=2)
        assert resumed.start_of_train_dataset() and not resumed.start_of_train_dataset()
        resumed.train_dataloader = DataLoader(late, batch_size=2)
        assert late.taken == []
        assert saved["dataset_state"]["train"] is not None, "the checkpoint itself is not touched"

        later = a_state()
        later.load_state_dict(saved)
        later.train_dataloader = DataLoader(late, batch_size=2)
        assert late.taken == first.taken

    def test_a_dataset_with_another_kind_of_state_is_left_alone(self):
        class Dataset(TensorDataset):
            def state_dict(self):
                return {}

        state = a_state(train_dataloader=DataLoader(Dataset(torch.zeros(8, 3)), batch_size=2))
        assert state.state_dict()["dataset_state"]["train"] is None


class TestParallelism:
    def test_none(self):
        state = a_state()
        assert state.fsdp_config is None and state.fsdp_config_version == 0
        assert not state.fsdp_enabled and state.fsdp_state_dict_type is None
        assert not state.fsdp_sharded_state_dict_enabled and not state.is_model_ddp
        assert not state.load_monolith_rank0_only

    def test_configs(self):
        state = a_state(parallelism_config={"fsdp": {"state_dict_type": "sharded"}})
        assert isinstance(state.fsdp_config, FSDPConfig) and state.fsdp_config_version == 1
        state.fsdp_config = FSDP2Config(state_dict_type="full", load_monolith_rank0_only=True)
        assert state.fsdp_config_version == 2 and state.load_monolith_rank0_only
        split = {"fsdp2": {}, "tp": TPConfig(tensor_parallel_degree=2)}
        assert a_state(parallelism_config=split).tp_config == split["tp"]
        with pytest.warns(UserWarning, match="Received tensor_parallel_degree of 1, which is a"):
            assert a_state(parallelism_config={"tp": TPConfig()}).tp_config is None
        with pytest.raises(ValueError, match="requires 'fsdp'"):
            a_state(parallelism_config={"tp": split["tp"]})
        with pytest.raises(ValueError, match="load_monolith_rank0_only is not supported"):
            a_state(
                parallelism_config={
                    "fsdp2": {"state_dict_type": "full", "load_monolith_rank0_only": True},
                    "tp": split["tp"],
                }
            )
        with pytest.raises(ValueError, match="save_metrics=True is not supported"):
            a_state(parallelism_config={"fsdp2": {}}, save_metrics=True)
        with pytest.raises(TypeError, match="FSDPConfig"):
            state.fsdp_config = {}


class TestCheckpoint:
    def test_layout(self):
        state = a_trained_state(
            algorithms=[Recorder(1)], callbacks=[Recorder(2)], scaler=Recorder(3)
        )
        saved = state.state_dict()
        assert list(saved) == KEYS
        assert list(saved["model"]) == list(state.model.state_dict())
        adam = saved["optimizers"]["AdamW"]
        assert list(adam) == ["state", "param_groups"]
        names = [name for name, _ in state.model.named_parameters()]
        assert list(adam["state"]) == names and adam["param_groups"][0]["params"] == names
        assert list(saved["schedulers"]) == ["LambdaLR"]
        assert saved["algorithms"] == [("Recorder", {"value": 1})]
        assert saved["callbacks"] == {"Recorder": {"value": 2}}
        assert saved["scaler"] == {"Recorder": {"value": 3}}
        assert saved["timestamp"] == {"Timestamp": state.timestamp.state_dict()}
        assert (saved["rank_zero_seed"], saved["run_name"]) == (17, "run")
        assert saved["dataset_state"] == {"train": None, "eval": {}}
        assert saved["integrations"] == {}
        assert list(saved["metadata"]) == [
            "composer_env_info",
            "torch_version",
            "device",
            "precision",
            "world_size",
            "device_train_microbatch_size",
        ]

    def test_what_is_kept_is_what_is_listed(self):
        state = a_trained_state()
        state.serialized_attributes.remove("optimizers")
        state.serialized_attributes.append("note")
        state.note = {"said": 1}
        saved = state.state_dict()
        assert "optimizers" not in saved and saved["note"] == {"said": 1}
        other = a_trained_state()
        other.serialized_attributes.append("note")
        other.load_state_dict(saved)
        assert other.note == {"said": 1}

    def test_metadata_and_integrations(self):
        class Describing(torch.nn.Linear):
            def get_metadata(self):
                return {"model": "m"}

        state = a_state(
            model=Describing(1, 1),
            train_dataloader=DataLoader(TensorDataset(torch.zeros(4)), batch_size=2),
            device_train_microbatch_size=1,
            precision="amp_bf16",
        )
        saved = state.state_dict()
        assert saved["integrations"] == {"huggingface": {"model": "m"}}
        assert saved["metadata"]["train_dataloader_batch_size"] == 2
        assert saved["metadata"]["precision"] == "amp_bf16"
        assert saved["metadata"]["device"] == "cpu"
        state.model = torch.compile(state.model, backend="eager")
        assert state.state_dict()["integrations"] == {"huggingface": {"model": "m"}}

    def test_round_trip(self):
        state = a_trained_state(algorithms=[Recorder(1)], callbacks=[Recorder(2)])
        saved = state.state_dict()
        other = a_trained_state(algorithms=[Recorder()], callbacks=[Recorder()], run_name="other")
        other.advance_batch(1, 1)
        held = other.timestamp
        before = held.state_dict()
        other.load_state_dict(saved)
        assert held.state_dict() == before, "whoever holds the old timestamp keeps it"
        assert equal(other.state_dict(), saved)
        assert other.run_name == "run"
        assert other.callbacks[0].value == 2 and other.algorithms[0].value == 1

    def test_saving_changes_nothing(self):
        state = a_trained_state()
        first, second = state.state_dict(), state.state_dict()
        assert equal(first, second)
        weights = {key: value.clone() for key, value in first["model"].items()}
        a_trained_state().load_state_dict(first)
        assert list(first["model"]) == list(weights), "loading takes nothing out of the dictionary"

    def test_saving_before_the_first_step_leaves_the_optimizer_alone(self):
        state = a_state()
        optimizer = torch.optim.AdamW(state.model.parameters(), lr=0.1)
        state.optimizers = optimizer
        saved = state.state_dict()
        assert not optimizer.state
        assert saved["optimizers"]["AdamW"]["state"] == {}
        other = a_state()
        other.optimizers = torch.optim.AdamW(other.model.parameters(), lr=0.5)
        other.load_state_dict(saved)
        assert other.optimizers[0].param_groups[0]["lr"] == 0.1
        assert not other.optimizers[0].state

    def test_strangers_are_warned_about(self):
        saved = a_trained_state(callbacks=[Stranger(5)]).state_dict()
        other = a_state(callbacks=[Recorder(7)])
        other.optimizers = torch.optim.SGD(other.model.parameters(), lr=0.1)
        with pytest.warns(UserWarning) as caught:
            other.load_state_dict(saved)
        messages = [str(warning.message) for warning in caught]
        assert [message.split(" is not")[0] for message in messages] == [
            "callbacks: Recorder",
            "optimizers: SGD",
        ]
        assert other.callbacks[0].value == 7

    def test_two_callbacks_of_one_class_keep_their_own_states(self):
        saved = a_state(callbacks=[Recorder(1), Recorder(2), Recorder(3)]).state_dict()
        assert saved["callbacks"]["Recorder"] == {"value": 3}, "as upstream: the last one"
        other = a_state(callbacks=[Recorder(), Recorder(), Recorder()])
        other.load_state_dict(saved)
        assert [callback.value for callback in other.callbacks] == [1, 2, 3]
        saved["callbacks"] = {"Recorder": {"value": 9}}
        other.load_state_dict(saved)
        assert [callback.value for callback in other.callbacks] == [9, 9, 9]

    def test_a_scaler_that_was_off_leaves_nothing_to_load(self):
        saved = a_state(scaler=torch.amp.GradScaler("cpu", enabled=False)).state_dict()
        assert saved["scaler"] == {"GradScaler": {}}
        other = a_state(scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
        other.load_state_dict(saved)
        assert other.scaler.get_scale() == 8.0
        other.load_state_dict(a_state(scaler=torch.amp.GradScaler("cpu")).state_dict())
        assert other.scaler.get_scale() == 2.0**16

    def test_weights_that_do_not_fit(self):
        saved = a_state().state_dict()
        saved["model"]["extra"] = torch.zeros(1)
        del saved["model"]["0.bias"]
        other = a_state()
        with pytest.warns(UserWarning, match=r"0\.bias.*extra"):
            other.load_state_dict(saved)
        assert torch.equal(other.model[0].weight, saved["model"]["0.weight"])
        with pytest.raises(RuntimeError, match=r"Error\(s\) in loading state_dict") as raised:
            other.load_model_state(saved, strict=True)
        assert "0.bias" in str(raised.value) and "extra" in str(raised.value)
        saved["model"]["0.weight"] = torch.zeros(2, 2)
        with pytest.raises(RuntimeError, match="size mismatch"):
            other.load_model_state(saved, strict=False)

    def test_legacy_names(self):
        state = a_state()
        saved = state.state_dict()
        saved["model"] = {f"module.{key}": value for key, value in saved["model"].items()}
        saved["_is_model_ddp_wrapped"] = True
        saved["_rank_zero_seed"] = 99
        del saved["rank_zero_seed"]
        other = a_state()
        other.load_state_dict(saved)
        assert other.rank_zero_seed == 99
        assert torch.equal(other.model[0].weight, state.model[0].weight)

    def test_b55_a_compiled_model_leaves_no_prefix(self):
        state = a_trained_state()
        plain = state.state_dict()
        state.model = torch.compile(state.model, backend="eager")
        compiled = state.state_dict()
        assert equal(compiled["model"], plain["model"])
        assert equal(compiled["optimizers"], plain["optimizers"])
        other = a_trained_state()
        other.model = torch.compile(other.model, backend="eager")
        other.load_state_dict(plain)
        assert equal(other.state_dict()["model"], plain["model"])
        never_stepped = a_state(model=torch.compile(a_model(), backend="eager"))
        never_stepped.optimizers = torch.optim.SGD(never_stepped.model.parameters(), lr=0.1)
        groups = never_stepped.state_dict()["optimizers"]["SGD"]["param_groups"]
        assert groups[0]["params"][0] == "0.weight"

    def test_metrics(self):
        def metrics(*values):
            metric = torchmetrics.MeanMetric()
            for value in values:
                metric.update(value)
            return {"mean": metric}

        state = a_state(save_metrics=True)
        state.train_metrics = metrics(1.0, 2.0)
        state.train_metrics["mean"].compute()
        state.eval_metrics = {"eval": metrics(5.0)}
        saved = state.state_dict()
        assert set(saved["train_metrics"]["mean"]) == {"state_dict", "_computed"}
        assert list(saved) == [*KEYS[:8], "train_metrics", "eval_metrics", *KEYS[8:]]
        other = a_state(save_metrics=True)
        other.train_metrics, other.eval_metrics = metrics(), {"eval": metrics(), "new": metrics()}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            other.load_state_dict(saved)
            assert other.train_metrics["mean"].compute() == 1.5
            assert other.eval_metrics["eval"]["mean"].compute() == 5.0
        legacy = a_state(save_metrics=True)
        legacy.train_metrics = metrics()
        saved["train_metrics"] = metrics(4.0)
        legacy.load_state_dict(saved)
        assert legacy.train_metrics["mean"].compute() == 4.0


def test_precision_can_be_changed():
    state = a_state(precision="fp32", precision_config={"a": 1})
    state.precision = "amp_bf16"
    assert state.precision is Precision.AMP_BF16 and state.precision_config == {"a": 1}
    with pytest.raises(ValueError, match="fp64"):
        state.precision = "fp64"


def test_seed_of_a_rank(monkeypatch):
    monkeypatch.setattr("composer.utils.dist.get_global_rank", lambda group=None: 3)
    assert a_state().seed == 20
