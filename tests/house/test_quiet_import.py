"""Importing the packages defines and registers, and does nothing else."""

import json
import subprocess
import sys

import pytest

PROBE = """
import json, os, signal, sys, warnings
warnings.simplefilter("error")
import torch
env, handlers = dict(os.environ), [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
before = set(sys.modules)
import {package}
print(json.dumps({{
    "new": sorted(set(sys.modules) - before),
    "env": dict(os.environ) == env,
    "handlers": [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers,
    "cuda": torch.cuda.is_initialized(),
    "dist": torch.distributed.is_initialized(),
}}))
"""
HEAVY = {
    "transformers",
    "torchmetrics",
    "datasets",
    "pandas",
    "matplotlib",
    "omegaconf",
    "rich",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.utils.tensorboard",
    "huggingface_hub",
    "fsspec",
}


@pytest.mark.parametrize(
    "package", ["composer", "composer.trainer", "composer.algorithms", "streaming", "llmfoundry"]
)
def test_import_is_quiet_and_light(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(package=package)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    seen = json.loads(done.stdout)
    assert not HEAVY & set(seen["new"])
    assert seen["env"] and seen["handlers"]
    assert not seen["cuda"] and not seen["dist"]
