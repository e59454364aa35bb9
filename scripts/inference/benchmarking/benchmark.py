"""Measures how fast a model generates: ``benchmark.py BENCHMARK.yaml key=value ...``."""

import sys

from llmfoundry.command_utils.inference_benchmark import inference_benchmark
from llmfoundry.config.problems import ConfigError

USAGE = "usage: benchmark.py BENCHMARK.yaml [key=value ...]"

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(f"{__doc__}\n\n{USAGE}", file=sys.stdout if len(sys.argv) > 1 else sys.stderr)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    try:
        inference_benchmark(sys.argv[1], sys.argv[2:])
    except ConfigError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
