"""Memory that does not grow with the corpus, and tables that are left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llmfoundry import command_utils
from llmfoundry.cli.cli import app
from llmfoundry.command_utils import convert_dataset_json
from llmfoundry.command_utils.data_prep._rows import concatenation
from llmfoundry.utils.exceptions import DatasetTooSmallError
from tests.llmfoundry.tiny_tokenizer import TEXT, train_tokenizer

MEASURED = """
import functools, json, random, resource, sys
from pathlib import Path
from llmfoundry.command_utils import convert_dataset_json
from llmfoundry.command_utils.data_prep import _json_rows, _rows, _tokenizing

def peak(folder, megabytes, processes, packing):
    generator, words = random.Random(0), sys.argv[2].split()
    path = Path(folder, f"{megabytes}-{processes}-{packing}.json")
    with path.open("w") as file:
        while file.tell() < megabytes << 20:
            text = " ".join(generator.choices(words, k=300))
            file.write(("," if file.tell() else "[") + json.dumps({"text": text}))
        file.write("]")
    convert_dataset_json(
        str(path), str(path) + "-out", None, 256, "train", f"{folder}/tokenizer",
        eos_text="</s>", num_workers=processes, packing=packing,
    )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

if __name__ == "__main__":
    _rows.MDSWriter = functools.partial(_rows.MDSWriter, size_limit=1 << 20)
    _tokenizing.BATCH_CHARACTERS, _tokenizing.BATCHES_THAT_PAY = 100_000, 2
    for processes, packing in ((1, "concat"), (2, "concat"), (1, "best_fit")):
        small, large = (peak(sys.argv[1], size, processes, packing) for size in (4, 28))
        print("grew by", large - small)
"""


@pytest.mark.slow
def test_memory_is_flat_in_the_size_of_the_corpus(tmp_path: Path) -> None:
    train_tokenizer().save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "measured.py").write_text(MEASURED)
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "measured.py"), str(tmp_path), " ".join(TEXT)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
        check=True,
        capture_output=True,
        text=True,
    )
    grown = [float(line.split()[-1]) for line in ran.stdout.splitlines() if "grew by" in line]
    assert len(grown) == 3 and max(grown) < 10, grown  # MiB, for 24 MiB of text more


@pytest.mark.slow
def test_a_program_that_cannot_be_imported_again_is_told_so(tmp_path: Path) -> None:
    train_tokenizer().save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": " ".join(TEXT)}))
    arguments = [str(tmp_path / "a.jsonl"), str(tmp_path / "out"), None, 16, "train"]
    (tmp_path / "program.py").write_text(
        "from llmfoundry.command_utils import convert_dataset_json\n"
        "from llmfoundry.command_utils.data_prep import _tokenizing\n"
        "_tokenizing.BATCHES_THAT_PAY = 1\n"
        f"convert_dataset_json(*{arguments}, {str(tmp_path / 'tokenizer')!r}, eos_text='</s>', "
        "num_workers=2)\n"
    )
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 1 and "must do so under `if __name__" in ran.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("out*"))


def test_too_little_for_a_row_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(DatasetTooSmallError, match=r"documents written: 0 .*Add text"):
        convert_dataset_json(str(tmp_path), str(tmp_path / "out"), None, None, "train")
    train_tokenizer().save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "a.jsonl").write_text('{"text": "a b"}\n')
    with pytest.raises(DatasetTooSmallError, match=r"fill one row of 99 tokens.*tokens: 3;"):
        convert_dataset_json(
            str(tmp_path), str(tmp_path / "out"), None, 99, "train",
            str(tmp_path / "tokenizer"), eos_text="</s>",
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_processes_are_at_least_one_and_by_default_all_cpus(tmp_path: Path) -> None:
    train_tokenizer().save_pretrained(tmp_path)
    for asked, made in ((0, 1), (3, 3), (None, len(os.sched_getaffinity(0)))):
        how = concatenation(8, str(tmp_path), None, "", "</s>", False, asked, "concat")
        assert how is not None and how.processes == made


def test_delta_tables_are_left_behind() -> None:
    for name in ("fetch_DT", "convert_delta_to_json_from_args", "convert_delta_to_contrastive_mds"):
        with pytest.raises(NotImplementedError, match=r"Export the table.*convert_dataset_json"):
            getattr(command_utils, name)(delta_table_name="a.b.c")
    command = ["data_prep", "convert_delta_to_json", "--delta-table-name", "a.b.c"]
    assert isinstance(CliRunner().invoke(app, command).exception, NotImplementedError)
