"""The benchmarks run and say what they measured, and every row of the methods can be trained."""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from composer import Trainer
from composer.models import ComposerClassifier
from composer.optim import DecoupledSGDW
from llmfoundry import registry
from llmfoundry.builders import build_algorithm, build_callback, build_optimizer, build_scheduler
from llmfoundry.config.parse import parse_train_config
from llmfoundry.models import ComposerMPTCausalLM
from llmfoundry.utils.registry_utils import save_registry
from tests.llmfoundry.tiny_tokenizer import TEXT, train_tokenizer

ROOT = Path(__file__).resolve().parents[2]
CARDS = ROOT / "docs" / "methods"
TASKS: dict[str, Any] = yaml.safe_load((ROOT / "benchmarks/methods/rows.yaml").read_text("utf-8"))
ROWS = [(task, row) for task in TASKS for row in TASKS[task]["rows"]]
PLACE = re.compile(r"<!-- measured: ([\w ]+) -->")


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a script of `benchmarks/methods`, where they import each other."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "methods"))
    names = {path.stem for path in (ROOT / "benchmarks" / "methods").glob("*.py")}
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words", "result"),
    [
        ("trainer_overhead", "our step is", "ratio"),
        ("unhandled_events", "13 unheard events a step, 1,000 callbacks", "share"),
    ],
)
def test_a_benchmark_runs(script: str, words: str, result: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / f"{script}.py")]
    options = {"rounds": 1, "steps": 20, "batch_size": 4, "features": 8, "json": figures}
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert words in done.stdout, done.stderr  # of so small a step it is over its bar
    assert json.loads(figures.read_text())[result] > 0


@pytest.mark.slow
def test_the_overhead_of_an_algorithm_is_measured(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "algorithm_overhead.py")]
    command += ["--only", "label_smoothing", "--turns", "1", "--steps", "1", "--json", str(figures)]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "label_smoothing: a step takes" in done.stdout, done.stderr  # bars are not for one turn
    assert json.loads(figures.read_text())["label_smoothing"] > 0


@pytest.mark.slow
def test_the_step_of_a_model_is_measured(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "model_step.py")]
    sizes = {"rounds": 1, "sequence": 16, "width": 32, "heads": 2, "layers": 2, "json": figures}
    for name, value in sizes.items():
        command += [f"--{name}", str(value)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "mpt_compiled" in done.stdout, done.stderr  # so small a one need not be fast
    result = json.loads(figures.read_text())
    assert result["gpt2"]["ratio"] == result["gpt2"]["share"] == 1
    assert all(row["seconds"] > 0 and row["mib"] > 0 for row in result.values())


@pytest.mark.slow
def test_the_data_path_is_measured(tmp_path: Path) -> None:
    train_tokenizer().save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("\n".join(TEXT) * 400)
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "data.py")]
    command += ["--ways", "mds", "flat", "text", "litdata", "mosaicml"]
    sizes = {"rounds": 1, "rows": 64, "sequence": 16, "width": 48, "layers": 1, "copies": 1}
    places = {"tokenizer": tmp_path / "tokenizer", "text": tmp_path / "text", "json": figures}
    for name, value in {**sizes, **places, "peers": tmp_path / "none"}.items():
        command += [f"--{name}", str(value)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert re.search("mosaicml 0 +not measured: streaming is ours", done.stdout), done.stderr
    assert re.search("litdata 2 +not measured: No module named", done.stdout)
    result = json.loads(figures.read_text())
    names = {f"{way} {n} {clock}" for way in ("mds", "flat", "text") for n in (0, 2)
             for clock in ("wall", "cpu")}  # fmt: skip
    names |= {f"{name} {n}" for name in ("first batch", "share") for n in (0, 2)}
    assert result.keys() == names | {"ours", "upstream", "over"}
    assert all(value > 0 for value in result.values())


@pytest.mark.slow
def test_generation_is_measured() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "generation.py"), "--rounds", "1"]
    command += ["--prompt", "4", "--new", "4", "--width", "64", "--layers", "1"]
    done = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert re.search(r"batch 1: ours [\d,.]+ tokens/s, theirs", done.stdout), done.stderr
    assert "batch 8: ours" in done.stdout  # so small a model need not be fast


@pytest.mark.parametrize(("task", "name"), ROWS)
def test_a_row_of_the_methods_is_understood(task: str, name: str, methods: Any) -> None:
    row = {"settings": {}, **TASKS[task]["rows"][name]}
    assert row.keys() <= {"settings", "grid", "sizes", "share", "against"}
    assert row.get("against", "baseline") in TASKS[task]["rows"]
    assert set(row.get("sizes", [])) <= TASKS[task]["sizes"].keys()
    steps = next(iter(TASKS[task]["sizes"].values()))
    settings = next(methods("run").choices_of(row, "small"))
    job = {"size": "small", "seed": 17, "steps": steps, "evaluate": True, "settings": settings}
    {"language": set_up_language, "vision": set_up_vision}[task](methods(task), job)


def set_up_language(script: Any, job: dict[str, Any]) -> None:
    """Builds all that a row names; algorithms meet the model when the Trainer is made."""
    with save_registry():
        registry.callbacks.register("step_clock", func=script.StepClock)
        config = parse_train_config(script.recipe_of(job))
        callbacks = [build_callback(name, each) for name, each in (config.callbacks or {}).items()]
    sections: dict[str, dict[str, Any]] = {}
    for section in ("model", "optimizer", "scheduler"):
        sections[section] = dict(getattr(config, section))
        sections[section].pop("name")
    for name, value in job["settings"].items():
        section, _, key = name.partition(".")
        if section in sections and "." not in key and key not in ("", "name"):
            assert sections[section][key] == value  # in place of what was there
    model = ComposerMPTCausalLM(**sections["model"])
    Trainer(
        model=model,
        optimizers=build_optimizer(model, config.optimizer["name"], sections["optimizer"]),
        schedulers=build_scheduler(config.scheduler["name"], sections["scheduler"]),
        algorithms=[
            build_algorithm(name, each) for name, each in (config.algorithms or {}).items()
        ],
        callbacks=callbacks,
        max_duration=config.max_duration,
        precision="amp_bf16",
        device="cpu",
        progress_bar=False,
    ).close()


def set_up_vision(script: Any, job: dict[str, Any]) -> None:
    assert job["settings"].keys() <= script.DEFAULTS.keys()
    settings = {**script.DEFAULTS, **job["settings"]}
    of_the_model = {name: settings[name] for name in script.MODEL_SETTINGS}
    network = script.build_resnet(script.WIDTHS["small"], **of_the_model)
    model = ComposerClassifier(network, num_classes=10)
    Trainer(
        model=model,
        optimizers=DecoupledSGDW(model.parameters(), lr=settings["lr"]),
        algorithms=script.build_algorithms(settings["algorithms"]),
        precision=settings["precision"],
        max_duration=f"{job['steps']}ba",
        device="cpu",
        progress_bar=False,
    ).close()


def test_cards_and_rows_name_each_other() -> None:
    cards = {path.name: path.read_text("utf-8") for path in CARDS.glob("*.md")}
    index = cards.pop("README.md")
    assert set(re.findall(r"\]\((\w+\.md)\)", index)) == cards.keys()
    named = {
        row for card in cards.values() for place in PLACE.findall(card) for row in place.split()
    }
    assert named == {row for _, row in ROWS} - {"baseline"}


def test_a_row_is_measured_once_and_goes_into_its_card(
    methods: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, report = methods("run"), methods("report")
    rows: dict[str, Any] = {
        "baseline": {"grid": {"optimizer.lr": [1, 2, 3]}},
        "ema": {},
        "sam": {},
        "fast": {"share": 0.5},
    }
    tasks = {"language": {"lower_is_better": True, "sizes": {"small": 500}, "rows": rows}}
    gains = {"ema": {17: 0.5, 18: 0.25}, "fast": {17: 1, 18: 1, 19: 1}}
    costs = {"ema": 1.25, "sam": 1.25, "fast": 1.04}
    trained: list[Any] = []

    def train(job: Any) -> dict[str, Any]:
        """A loss that is best at the rate 2 and falls with the steps."""
        trained.append(job)
        gain = gains.get(job.row, {}).get(job.seed, 0)
        loss = 4 + abs(job.settings["optimizer.lr"] - 2) - gain - job.steps / 1000
        return {"metric": loss, "cost": costs.get(job.row, 1.0)}

    monkeypatch.setattr(run, "train_in_a_process", train)
    for _ in range(2):  # the second time all is there
        results = run.Results(tmp_path / "results.jsonl")
        for name in rows:
            run.measure(results, "language", tasks["language"], name, [17, 18, 19])
    purposes = [(job.row, job.purpose, job.steps, job.settings["optimizer.lr"]) for job in trained]
    assert purposes[:3] == [("baseline", "tune", 500, rate) for rate in (1, 2, 3)]
    assert purposes[3:5] == [("baseline", "steps", 500, 2)] * 2  # one seed was trained in tuning
    assert purposes[5:11] == [("ema", "steps", 500, 2)] * 3 + [("ema", "time", 400, 2)] * 3
    assert purposes[11:14] == [("sam", "steps", 500, 2)] * 3  # no better and costlier: it has lost
    assert purposes[14:] == [("fast", "steps", 500, 2)] * 3 + [("fast", "bar", 240, 2)] * 3
    found = report.read(tmp_path / "results.jsonl")
    lines = report.table(found, ["ema", "sam", "fast"], tasks).splitlines()
    start = "| language, small |"
    assert lines[-7:] == [
        f"{start} `ema` | 500 | 3.5000 | 3.2500 | 3.3500 | 1.25 | 2 of 3 seeds | unclear |",
        f"{start} `fast` | 500 | 3.5000 | 2.5000 | 2.5000 | 1.04 | 3 of 3 seeds | yes |",
        f"{start} `sam` | 500 | 3.5000 | 3.5000 | worse | 1.25 | 0 of 3 seeds | no |",
        "",
        *report.BAR_HEAD.splitlines(),
        f"{start} `fast` | 0.50 | 3.5000 | 2.7600 | 3 of 3 seeds |",
    ]
    assert report.table(found, ["all"], tasks).splitlines()[2:] == lines[2:]
