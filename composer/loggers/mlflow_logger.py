"""Logs to MLflow."""

import fnmatch
import os
import time
import warnings
from concurrent.futures import Future
from importlib.metadata import version
from typing import Any, ClassVar

from composer.core.logger import Logger
from composer.core.state import State
from composer.loggers._mlflow_monitor import MlflowMonitorProcess
from composer.loggers._service import (
    ServiceLogger,
    cleaned,
    import_package,
    to_arrays,
    to_numbers,
    to_plain,
    to_unit_range,
    unless_silent,
)
from composer.utils import dist
from composer.utils.background import BackgroundThreads

__all__ = [
    "DEFAULT_MLFLOW_EXPERIMENT_NAME",
    "LOG_DUPLICATED_METRIC_VALUE_PER_N_STEPS",
    "MLFLOW_EXPERIMENT_ID_FORMAT_KEY",
    "MLFLOW_RUN_ID_FORMAT_KEY",
    "MLFlowLogger",
    "MlflowMonitorProcess",
]

DEFAULT_MLFLOW_EXPERIMENT_NAME = "my-mlflow-experiment"
LOG_DUPLICATED_METRIC_VALUE_PER_N_STEPS = 100
MLFLOW_EXPERIMENT_ID_FORMAT_KEY = "mlflow_experiment_id"
MLFLOW_RUN_ID_FORMAT_KEY = "mlflow_run_id"

# What MLflow takes in one request, and which characters in a name.
_METRICS_PER_REQUEST = 1000
_PARAMETERS_PER_REQUEST = 100
_MIN_PAUSE_SECONDS = 1.0
_IN_NAMES = r"\w.\- :/"


class MLFlowLogger(ServiceLogger):
    """Logs metrics, hyperparameters, tables, images and models to MLflow.

    Requests are sent from a thread. The run is MLflow's active run, so that ``mlflow.log_...`` in
    callbacks goes there, too. A store that is a folder needs MLFLOW_ALLOW_FILE_STORE=true; MLflow
    recommends ``sqlite:///mlflow.db``.

    Args:
        experiment_name: The experiment; by default of MLFLOW_EXPERIMENT_NAME, else
            ``my-mlflow-experiment``. MLFLOW_EXPERIMENT_ID names one by its id.
        run_name: The run's name there; by default the name of the run.
        tags: The run's tags.
        tracking_uri: The server or store; by default MLflow's own choice (MLFLOW_TRACKING_URI), or
            Databricks if DATABRICKS_TOKEN is set.
        rank_zero_only: Log of rank 0 only; otherwise each rank has a run of its own.
        flush_interval: Send metrics every so many steps, too, at most once a second.
        model_registry_prefix: What stands in front of the names of registered models.
        model_registry_uri: The registry, if it is not the tracking server.
        synchronous: Send each metric at once and wait for the answer.
        log_system_metrics: Let MLflow watch CPU, GPU, memory, disk and network.
        rename_metrics: New names of metrics, by name.
        ignore_metrics: Which metrics not to log: shell patterns.
        ignore_hyperparameters: Which hyperparameters not to log: shell patterns.
        run_group: Kept as the tag ``run_group``, to find runs that belong together.
        resume: Go on with the newest MLflow run of the experiment that has the tag ``run_name`` of
            this run, if there is one. Steps that it already has are not sent again.
        logging_buffer_seconds: For how long metrics are gathered before they are sent.
        log_duplicated_metric_every_n_steps: A metric that does not change is logged once in so many
            steps.
    """

    package: ClassVar[str] = "mlflow"
    extra: ClassVar[str] = "mlflow"

    def __init__(
        self,
        experiment_name: str | None = None,
        run_name: str | None = None,
        tags: dict[str, Any] | None = None,
        tracking_uri: str | None = None,
        rank_zero_only: bool = True,
        flush_interval: int = 10,
        model_registry_prefix: str = "",
        model_registry_uri: str | None = None,
        synchronous: bool = False,
        log_system_metrics: bool = True,
        rename_metrics: dict[str, str] | None = None,
        ignore_metrics: list[str] | None = None,
        ignore_hyperparameters: list[str] | None = None,
        run_group: str | None = None,
        resume: bool = False,
        logging_buffer_seconds: float = 10,
        log_duplicated_metric_every_n_steps: int = LOG_DUPLICATED_METRIC_VALUE_PER_N_STEPS,
    ) -> None:
        super().__init__(rank_zero_only)
        if model_registry_uri == "databricks-uc" and len(model_registry_prefix.split(".")) != 2:
            raise ValueError(
                "When registering to Unity Catalog, model_registry_prefix must be "
                f"'<catalog>.<schema>', not {model_registry_prefix!r}."
            )
        if tracking_uri is None and os.environ.get("DATABRICKS_TOKEN"):
            tracking_uri = "databricks"
        self.experiment_name = experiment_name
        self.run_name = run_name
        self.tags = dict(tags or {})
        self.tracking_uri: str = tracking_uri or self._service.get_tracking_uri()
        self.flush_interval = flush_interval
        self.model_registry_prefix = model_registry_prefix
        self.model_registry_uri = model_registry_uri
        self.synchronous = synchronous
        self.log_system_metrics = log_system_metrics
        self.rename_metrics = rename_metrics or {}
        self.ignore_metrics = ignore_metrics or []
        self.ignore_hyperparameters = ignore_hyperparameters or []
        self.run_group = run_group
        self.resume = resume
        self.logging_buffer_seconds = logging_buffer_seconds
        self.log_duplicated_metric_every_n_steps = log_duplicated_metric_every_n_steps
        self.run_url: str | None = None
        self._experiment_id: str | None = None
        self._run_id: str | None = None
        self._mlflow_client: Any = None
        if self._enabled:
            self._mlflow_client = self._service.MlflowClient(
                self.tracking_uri, self.model_registry_uri
            )
        self._monitor: MlflowMonitorProcess | None = None
        self._metrics_cache: dict[str, tuple[float, int]] = {}
        self._buffer: list[Any] = []
        self._last_flush = (time.monotonic(), 0)
        self._known_params: set[str] = set()
        self._last_steps: dict[str, int] | None = None
        self._thread = BackgroundThreads(1, "mlflow")
        self._sending: list[Future[Any]] = []

    def init(self, state: State, logger: Logger) -> None:
        """Finds or makes the experiment and the run; all ranks learn their ids."""
        del logger
        name = os.environ.get("RUN_NAME", state.run_name)
        self.run_name = self._name_of_rank(self.run_name or state.run_name)
        self.tags["run_name"] = self._name_of_rank(name)
        if self.run_group:
            self.tags["run_group"] = self.run_group
        if self._enabled:
            self._service.set_tracking_uri(self.tracking_uri)
            if self.model_registry_uri is not None:
                self._service.set_registry_uri(self.model_registry_uri)
            self._experiment_id = self._find_experiment()
            self._run_id = self._find_run()
            self._service.start_run(run_id=self._run_id, log_system_metrics=self.log_system_metrics)
            if self._is_on_databricks:
                self._monitor = MlflowMonitorProcess(os.getpid(), self._run_id, self.tracking_uri)
                self._monitor.start()
        if not self._is_of_one_rank:
            ids = [self._experiment_id, self._run_id]
            dist.broadcast_object_list(ids)
            self._experiment_id, self._run_id = ids

    def after_load(self, state: State, logger: Logger) -> None:
        """Tells the other loggers where the run is."""
        logger.log_hyperparameters(self.path_placeholders())
        host, page = self.tracking_uri, "#"
        if self._is_on_databricks:
            host, page = os.environ.get("DATABRICKS_HOST", ""), "ml"
        if host.startswith("http"):
            place = f"experiments/{self._experiment_id}/runs/{self._run_id}"
            self.run_url = f"{host.rstrip('/')}/{page}/{place}"

    def path_placeholders(self) -> dict[str, str]:
        """Returns the ids of the experiment and the run, for the paths of checkpoints."""
        return {
            MLFLOW_EXPERIMENT_ID_FORMAT_KEY: str(self._experiment_id),
            MLFLOW_RUN_ID_FORMAT_KEY: str(self._run_id),
        }

    def rename(self, key: str) -> str:
        """Returns the name under which a metric is logged."""
        return self.rename_metrics.get(key, key)

    @unless_silent
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Keeps the metrics of a step, and sends what has gathered, if it is time to."""
        now, step, make = int(time.time() * 1000), step or 0, self._service.entities.Metric
        for name, value in to_numbers(metrics).items():
            name = cleaned(self.rename(name), _IN_NAMES)
            if not _matches(name, self.ignore_metrics) and self._is_news(name, value, step):
                self._buffer.append(make(name, value, now, step))
        last_time, last_step = self._last_flush
        waited = time.monotonic() - last_time
        is_due = step - last_step >= self.flush_interval and waited >= _MIN_PAUSE_SECONDS
        if is_due or waited >= self.logging_buffer_seconds or self.synchronous:
            self._flush(step)

    @unless_silent
    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Logs hyperparameters; one that the run has keeps its value, as MLflow wants it."""
        news = {cleaned(name, _IN_NAMES): value for name, value in hyperparameters.items()}
        parameters = [
            self._service.entities.Param(name, str(value))
            for name, value in news.items()
            if name not in self._known_params and not _matches(name, self.ignore_hyperparameters)
        ]
        self._known_params |= news.keys()
        for start in range(0, len(parameters), _PARAMETERS_PER_REQUEST):
            part = parameters[start : start + _PARAMETERS_PER_REQUEST]
            self._send("log_batch", params=part)

    @unless_silent
    def log_table(
        self,
        columns: list[str],
        rows: list[list[Any]],
        name: str = "Table",
        step: int | None = None,
    ) -> None:
        """Adds rows to the artifact ``<name>.json``."""
        del step
        data = {
            column: [to_plain(row[index]) for row in rows] for index, column in enumerate(columns)
        }
        self._send("log_table", data, f"{name}.json")

    @unless_silent
    def log_images(
        self,
        images: Any,
        name: str = "image",
        channels_last: bool = False,
        step: int | None = None,
        masks: dict[str, Any] | None = None,
        mask_class_labels: dict[int, str] | None = None,
        use_table: bool = True,
    ) -> None:
        """Keeps images as the artifacts ``<name>_<step>_<number>.png``; masks are left out."""
        del mask_class_labels, use_table
        if masks is not None:
            warnings.warn("MLFlowLogger draws no masks: the images are logged without.")
        for number, array in enumerate(to_arrays(images, channels_last)):
            self._send("log_image", to_unit_range(array), f"{name}_{step}_{number}.png")

    def eval_end(self, state: State, logger: Logger) -> None:
        """Sends the results."""
        self._flush(state.timestamp.batch.value)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Sends what has gathered."""
        super().fit_end(state, logger)
        self._flush(state.timestamp.batch.value)

    def post_close(self) -> None:
        """Sends the rest; the run is marked as failed if training did not come to its end."""
        if self._run_id is None or not self._enabled:
            return
        try:
            self._flush(0)
            self._thread.close()
            self._raise_errors()
        finally:
            self._end_run()

    @unless_silent
    def save_model(self, flavor: str, **kwargs: Any) -> None:
        """Saves a model to a folder in MLflow's format; the only flavor is ``transformers``."""
        self._flavor(flavor).save_model(**_with_requirements(kwargs))

    @unless_silent
    def log_model(self, flavor: str, **kwargs: Any) -> Any:
        """Logs a model to the run; returns MLflow's description of it, None on silent ranks."""
        return self._flavor(flavor).log_model(**_with_requirements(kwargs))

    @unless_silent
    def register_model(
        self,
        model_uri: str,
        name: str,
        await_registration_for: int = 300,
        tags: dict[str, Any] | None = None,
    ) -> Any:
        """Registers a model that is in a run or a store; returns MLflow's version of it."""
        return self._service.register_model(
            model_uri=model_uri,
            name=self._registered(name),
            await_registration_for=await_registration_for,
            tags=tags,
        )

    @unless_silent
    def register_model_with_run_id(
        self,
        model_uri: str,
        name: str,
        await_creation_for: int = 300,
        tags: dict[str, Any] | None = None,
    ) -> Any:
        """Registers a model as one that this run has made; returns MLflow's version of it."""
        client, full_name = self._mlflow_client, self._registered(name)
        try:
            client.create_registered_model(full_name)
        except self._service.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        return client.create_model_version(
            name=full_name,
            source=model_uri,
            run_id=self._run_id,
            tags=tags,
            await_creation_for=await_creation_for,
        )

    @property
    def _is_on_databricks(self) -> bool:
        return self.tracking_uri.startswith("databricks")

    def _end_run(self) -> None:
        is_told = False
        try:
            self._service.end_run("FINISHED" if self._ended_well else "FAILED")
            is_told = True
        finally:
            if self._monitor is not None:
                (self._monitor.stop if is_told else self._monitor.crash)()

    def _registered(self, name: str) -> str:
        return f"{self.model_registry_prefix}.{name}" if self.model_registry_prefix else name

    def _flavor(self, flavor: str) -> Any:
        if flavor != "transformers":
            raise NotImplementedError(
                f"flavor={flavor!r} is not supported; the only one is 'transformers'."
            )
        return import_package("mlflow.transformers", "mlflow")

    def _find_experiment(self) -> str:
        given = os.environ.get("MLFLOW_EXPERIMENT_ID")
        if given and self.experiment_name is None:
            return given
        name = self.experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        name = name or DEFAULT_MLFLOW_EXPERIMENT_NAME
        if self._is_on_databricks and not name.startswith("/"):
            user = import_package("databricks.sdk", "mlflow").WorkspaceClient().current_user.me()
            name = f"/Users/{user.user_name}/{name}"
        self.experiment_name = name
        found = self._mlflow_client.get_experiment_by_name(name)
        if found is not None:
            return found.experiment_id
        return self._mlflow_client.create_experiment(name)

    def _find_run(self) -> str:
        run_id = os.environ.get("MLFLOW_RUN_ID") or (self._newest_run() if self.resume else None)
        if run_id is None:
            made = self._mlflow_client.create_run(
                self._experiment_id, tags=self.tags, run_name=self.run_name
            )
            return made.info.run_id
        self._last_steps = {}
        self._known_params = set(self._mlflow_client.get_run(run_id).data.params)
        return run_id

    def _newest_run(self) -> str | None:
        name = self.tags["run_name"].replace("'", "\\'")
        found = self._mlflow_client.search_runs(
            [self._experiment_id],
            filter_string=f"tags.run_name = '{name}'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
        return found[0].info.run_id if found else None

    def _is_news(self, name: str, value: float, step: int) -> bool:
        known = self._metrics_cache.get(name)
        if known is not None:
            is_old = step < known[1] + self.log_duplicated_metric_every_n_steps
            if known[0] == value and is_old:
                return False
        self._metrics_cache[name] = value, step
        return True

    def _flush(self, step: int) -> None:
        self._raise_errors()
        self._last_flush = time.monotonic(), step
        gathered, self._buffer = self._buffer, []
        for start in range(0, len(gathered), _METRICS_PER_REQUEST):
            part = gathered[start : start + _METRICS_PER_REQUEST]
            self._submit(self._send_new, part)

    def _send_new(self, metrics: list[Any]) -> None:
        """Sends, in the thread, the metrics whose step a resumed run does not have yet."""
        if self._last_steps is not None:
            metrics = [each for each in metrics if each.step > self._last_step(each.key)]
        self._mlflow_client.log_batch(self._run_id, metrics=metrics, synchronous=True)

    def _last_step(self, name: str) -> int:
        assert self._last_steps is not None
        if name not in self._last_steps:
            history = self._mlflow_client.get_metric_history(self._run_id, name)
            self._last_steps[name] = max((each.step for each in history), default=-1)
        return self._last_steps[name]

    def _send(self, method: str, *args: Any, **kwargs: Any) -> None:
        call = getattr(self._mlflow_client, method)
        self._submit(lambda: call(self._run_id, *args, **kwargs))

    def _submit(self, call: Any, *args: Any) -> None:
        self._sending.append(self._thread.submit(call, *args))
        if self.synchronous:
            self._sending.pop().result()

    def _raise_errors(self) -> None:
        ended = [future for future in self._sending if future.done()]
        self._sending = [future for future in self._sending if not future.done()]
        for future in ended:
            future.result()


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _with_requirements(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Says what a transformers model needs; MLflow's own guess needs torchvision installed."""
    packages = ("torch", "transformers")
    needs = [f"{name}=={version(name).partition('+')[0]}" for name in packages]
    return {"pip_requirements": needs, **kwargs}
