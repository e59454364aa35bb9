"""Measures the best matrix-multiply rate of this machine: what a model's FLOP/s are held against.

python benchmarks/matmul_peak.py --dtype bf16 --json peak.json
"""

import argparse
import json
import time
from pathlib import Path

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def main() -> None:
    """Prints the rate and, on request, writes it to a JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--size", type=int, default=None, help="rows and columns of the matrices")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure")
    parser.add_argument("--json", type=Path, default=None, help="write the result here too")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = arguments.size or (8192 if device == "cuda" else 2048)
    rate = measure(DTYPES[arguments.dtype], device, size, arguments.seconds)
    place = f"{torch.get_num_threads()} CPU thread(s)" if device == "cpu" else "the GPU"
    print(f"{rate / 1e9:,.0f} GFLOP/s in {arguments.dtype} on {place} ({size} x {size})")
    if arguments.json is not None:
        row = {"dtype": arguments.dtype, "device": device, "size": size, "flops_per_second": rate}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(row) + "\n", encoding="utf-8")


def measure(dtype: torch.dtype, device: str, size: int, seconds: float) -> float:
    """Floating-point operations per second of the fastest of many products."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    torch.matmul(left, right)  # the first product pays for what is set up lazily
    while time.perf_counter() < end:
        wait_for(device)
        start = time.perf_counter()
        torch.matmul(left, right)
        wait_for(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def wait_for(device: str) -> None:
    """Returns when the device has finished what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
