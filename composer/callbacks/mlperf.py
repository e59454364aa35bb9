"""Log files of MLPerf Training, in the format of its submissions."""

import json
import os
import platform
import shlex
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from composer._version import __version__
from composer.callbacks._watched_metric import get_metric_value
from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils import dist

BENCHMARKS = ("resnet", "bert")
DIVISIONS = ("open",)
STATUSES = ("onprem", "cloud", "preview")

mlperf_available = True
"""The lines are written here; the package ``mlperf_logging`` is not needed."""

_TO_BE_FILLED = (
    "host_storage_type host_storage_capacity host_networking host_networking_topology "
    "host_memory_configuration accelerator_host_interconnect accelerator_frequency "
    "accelerator_on-chip_memories accelerator_memory_configuration accelerator_interconnect "
    "accelerator_interconnect_topology cooling hw_notes other_software_stack sw_notes"
).split()


class MLPerfCallback(Callback):
    """Writes the result file and the system description of an MLPerf run, on rank 0.

    They are ``<root>/results/<system>/<benchmark>/result_<index>.txt`` and
    ``<root>/systems/<system>.json``; loggers that keep files get them too.

    Args:
        root_folder: Where to write.
        index: The number of the run among its repetitions.
        benchmark: ``"resnet"`` or ``"bert"``.
        target: The value of the metric to reach.
        division: ``"open"``.
        metric_name: The metric's name.
        metric_label: The label of the evaluator.
        submitter: Who submits.
        system_name: By default ``<ranks>x<device>_composer``.
        status: ``"onprem"``, ``"cloud"`` or ``"preview"``.
        cache_clear_cmd: The command that empties the machine's caches; without it a submission is
            not valid.
        host_processors_per_node: How many processors a machine has.
        exit_at_target: End training when the target is reached.
    """

    def __init__(
        self,
        root_folder: str,
        index: int,
        benchmark: str = "resnet",
        target: float = 0.759,
        division: str = "open",
        metric_name: str = "MulticlassAccuracy",
        metric_label: str = "eval",
        submitter: str = "MosaicML",
        system_name: str | None = None,
        status: str = "onprem",
        cache_clear_cmd: str | None = None,
        host_processors_per_node: int | None = None,
        exit_at_target: bool = False,
    ) -> None:
        for argument, value, known in (
            ("benchmark", benchmark, BENCHMARKS),
            ("division", division, DIVISIONS),
            ("status", status, STATUSES),
        ):
            if value not in known:
                raise ValueError(f"{argument}={value!r} is unknown; use one of {', '.join(known)}.")
        self.target = target
        self.benchmark = benchmark
        self.division = division
        self.submitter = submitter
        self.status = status
        self.cache_clear_cmd = cache_clear_cmd
        self.root_folder = root_folder
        self.metric_name = metric_name
        self.metric_label = metric_label
        self.exit_at_target = exit_at_target
        self.system_desc = get_system_description(
            submitter, division, status, system_name, host_processors_per_node
        )
        self.system_name = self.system_desc["system_name"]
        result = f"{self.system_name}/{benchmark}/result_{index}.txt"
        self.systems_path = os.path.join(root_folder, "systems", f"{self.system_name}.json")
        self.filename = os.path.join(root_folder, "results", result)
        self.upload_name = f"{{run_name}}/results/{result}"
        self.system_desc_upload_name = f"{{run_name}}/systems/{self.system_name}.json"
        self.success = False
        self._has_files = False

    def init(self, state: State, logger: Logger) -> None:
        """Makes the files, empties the caches, and begins the log.

        Raises:
            FileExistsError: If there is a result of this number.
        """
        dist.from_rank_zero(self._make_files)
        if self.cache_clear_cmd is None:
            warnings.warn(
                "cache_clear_cmd is not given: a valid submission empties the caches first.",
                stacklevel=2,
            )
        elif dist.get_local_rank() == 0:
            subprocess.run(shlex.split(self.cache_clear_cmd), check=True)
            self._log("cache_clear", True)
        self._log("init_start", kind="INTERVAL_START")
        for key, value in (
            ("submission_benchmark", self.benchmark),
            ("submission_division", self.division),
            ("submission_org", self.submitter),
            ("submission_platform", self.system_name),
            ("submission_status", self.status),
            ("seed", state.seed),
        ):
            self._log(key, value)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Logs sizes, and that the run starts.

        Raises:
            ValueError: If the dataloader does not say its batch size.
        """
        batch_size = getattr(state.dataloader, "batch_size", None)
        if batch_size is None:
            raise ValueError(
                "MLPerfCallback logs the global batch size, and the dataloader has no batch_size."
            )
        self._log("global_batch_size", batch_size * dist.get_world_size())
        loaders: list[tuple[str, Any]] = [("train", state.dataloader)]
        for evaluator in state.evaluators:
            if evaluator.label == self.metric_label:
                loaders.append(("eval", evaluator.dataloader.dataloader))
        for name, loader in loaders:
            dataset: Any = getattr(loader, "dataset", None)
            if hasattr(dataset, "__len__"):
                self._log(f"{name}_samples", len(dataset))
        self._log("init_stop", kind="INTERVAL_END")
        self._log("run_start", kind="INTERVAL_START")

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Logs it."""
        self._log_epoch("epoch_start", state, "INTERVAL_START")

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Logs it, and hands the file to the loggers."""
        self._log_epoch("epoch_stop", state, "INTERVAL_END")
        self._upload(logger)

    def eval_start(self, state: State, logger: Logger) -> None:
        """Logs it."""
        self._log_epoch("eval_start", state, "INTERVAL_START")

    def eval_end(self, state: State, logger: Logger) -> None:
        """Logs the metric, and whether the target is reached."""
        if state.dataloader_label != self.metric_label:
            return
        value = get_metric_value(state, self.metric_label, self.metric_name).item()
        self._log_epoch("eval_stop", state, "INTERVAL_END")
        self._log_epoch("eval_accuracy", state, "POINT_IN_TIME", value)
        if value > self.target and not self.success:
            self.success = True
            self._log("run_stop", kind="INTERVAL_END", status="success")
            self._upload(logger)
            if self.exit_at_target:
                state.stop_training()

    def close(self, state: State, logger: Logger) -> None:
        """Logs that the run ended without reaching its target, if so."""
        if not self.success and os.path.exists(self.filename):
            self._log("run_stop", kind="INTERVAL_END", status="aborted")
        self._upload(logger)

    def _make_files(self) -> None:
        Path(self.filename).parent.mkdir(parents=True, exist_ok=True)
        # A second Trainer with this callback goes on with its own file.
        Path(self.filename).touch(exist_ok=self._has_files)
        self._has_files = True
        Path(self.systems_path).parent.mkdir(parents=True, exist_ok=True)
        Path(self.systems_path).write_text(json.dumps(self.system_desc, indent=4))

    def _log_epoch(self, key: str, state: State, kind: str, value: Any = None) -> None:
        self._log(key, value, kind, epoch_num=state.timestamp.epoch.value)

    def _log(
        self, key: str, value: Any = None, kind: str = "POINT_IN_TIME", **metadata: Any
    ) -> None:
        if dist.get_global_rank() != 0:
            return
        line = {
            "namespace": "",
            "time_ms": time.time_ns() // 1_000_000,
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": {"file": __file__, "lineno": 0, **metadata},
        }
        with open(self.filename, "a") as file:
            file.write(f":::MLLOG {json.dumps(line)}\n")

    def _upload(self, logger: Logger) -> None:
        if dist.get_global_rank() == 0 and logger.has_file_upload_destination():
            logger.upload_file(self.upload_name, self.filename, overwrite=True)
            logger.upload_file(self.system_desc_upload_name, self.systems_path, overwrite=True)


def get_system_description(
    submitter: str,
    division: str,
    status: str,
    system_name: str | None = None,
    host_processors_per_node: int | None = None,
) -> dict[str, str]:
    """Returns what MLPerf wants to know of the machines; warns of what is to be filled in by hand.

    Args:
        submitter: Who submits.
        division: The division.
        status: The availability of the machines.
        system_name: By default ``<ranks>x<device>_composer``.
        host_processors_per_node: How many processors a machine has.
    """
    import psutil  # here, because importing it costs 10 ms that only its users should pay

    is_gpu = torch.cuda.is_available()
    model = torch.cuda.get_device_name() if is_gpu else "CPU"
    world_size, per_node = dist.get_world_size(), dist.get_local_world_size()
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30 if is_gpu else 0
    known = {
        "submitter": submitter,
        "division": division,
        "status": status,
        "system_name": system_name or f"{world_size}x{model.replace(' ', '-')}_composer",
        "number_of_nodes": str(world_size // per_node),
        "host_processors_per_node": str(host_processors_per_node or ""),
        "host_processor_model_name": platform.processor() or platform.machine(),
        "host_processor_core_count": str(psutil.cpu_count(logical=False)),
        "host_processor_vcpu_count": str(psutil.cpu_count(logical=True)),
        "host_memory_capacity": f"{round(psutil.virtual_memory().total / 2**30)} GB",
        "accelerators_per_node": str(per_node if is_gpu else 0),
        "accelerator_model_name": model,
        "accelerator_memory_capacity": f"{round(memory)} GB",
        "framework": f"PyTorch {torch.__version__}, Composer {__version__}",
        "operating_system": f"{platform.system()} {platform.release()}",
    }
    warnings.warn(
        "The system description is incomplete: fill in by hand " + ", ".join(_TO_BE_FILLED) + ".",
        stacklevel=2,
    )
    return known | dict.fromkeys(_TO_BE_FILLED, "")
