"""Logger and LoggerDestination: everything reaches every destination."""

from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from composer.core.logger import Logger, format_log_data_value
from composer.core.logger_destination import LoggerDestination
from composer.core.state import State
from composer.devices.device_cpu import DeviceCPU


@pytest.fixture
def state():
    state = State(torch.nn.Linear(1, 1), 0, "run", DeviceCPU())
    state.advance_batch(1, 1)
    return state


def test_everything_is_passed_on(state):
    destinations = [MagicMock(spec=LoggerDestination) for _ in range(2)]
    logger = Logger(state, destinations)
    assert logger.destinations == tuple(destinations)
    logger.log_metrics({"a": 1})
    logger.log_metrics({"a": 1}, step=9)
    logger.log_hyperparameters({"h": 1})
    logger.log_traces({"t": 1})
    logger.log_table(["c"], [[1]], "T")
    logger.log_images([1], masks={"m": 2})
    logger.log_distribution("d", [1])
    logger.upload_file("{run_name}/rank{rank}.txt", "x/{run_name}", overwrite=True)
    for destination in destinations:
        assert [call.args for call in destination.log_metrics.call_args_list] == [
            ({"a": 1}, 1),
            ({"a": 1}, 9),
        ]
        destination.log_hyperparameters.assert_called_once_with({"h": 1})
        destination.log_traces.assert_called_once_with({"t": 1})
        destination.log_table.assert_called_once_with(["c"], [[1]], "T", 1)
        destination.log_images.assert_called_once_with(
            [1], "Images", False, 1, {"m": 2}, None, True
        )
        destination.log_distribution.assert_called_once_with("d", [1], 1)
        destination.upload_file.assert_called_once_with(
            state, "run/rank0.txt", Path("x/run"), overwrite=True
        )


def test_step_zero_is_a_step(state):
    destination = MagicMock(spec=LoggerDestination)
    Logger(state, destination).log_metrics({"a": 1}, step=0)
    destination.log_metrics.assert_called_once_with({"a": 1}, 0)


def test_capabilities(state):
    class Plain(LoggerDestination):
        pass

    class Keeps(LoggerDestination):
        def can_upload_files(self):
            return True

        def download_file(self, *args, **kwargs):
            pass

        def path_placeholders(self):
            return {"experiment": "7"}

    plain = Plain()
    assert not plain.can_upload_files() and not plain.can_download_file()
    assert plain.path_placeholders() == {}
    with pytest.raises(NotImplementedError, match="Plain"):
        plain.download_file("a", "b")
    plain.log_metrics({}, 1)
    plain.upload_file(state, "a", Path("b"), overwrite=False)
    plain.log_distribution("a", [1])
    assert Keeps().can_download_file()
    assert not Logger(state, [plain]).has_file_upload_destination()
    assert Logger(state, [plain, Keeps()]).has_file_upload_destination()
    assert Logger(state, [plain, Keeps()]).path_placeholders() == {"experiment": "7"}
    assert Logger(state).destinations == ()


@pytest.mark.parametrize(
    "value, text",
    [
        (None, "None"),
        ("x", '"x"'),
        (3, "3"),
        (True, "True"),
        (0.123456, "0.1235"),
        (torch.tensor(2.0), "2.0000"),
        (torch.tensor([5]), "5"),
        (np.float32(0.5), "0.5000"),
        (np.array(0.5), "0.5000"),
        (np.array([1.0, 2.0]), "[1.0000, 2.0000]"),
        (torch.zeros(2, 3), "Tensor of shape torch.Size([2, 3])"),
        ({"k": 1.0}, '{ "k": 1.0000, }'),
        ([1, "a"], '[1, "a"]'),
        (1j, "1j"),
    ],
)
def test_formatting_values(value, text):
    assert format_log_data_value(value) == text
