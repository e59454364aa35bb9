"""Downloads from a hub, a web server and a registry, each of which is on this machine."""

import os
import runpy
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from composer.utils import file_helpers
from llmfoundry.utils import model_download_utils
from llmfoundry.utils.model_download_utils import (
    download_from_hf_hub,
    download_from_http_fileserver,
    download_from_oras,
)
from tests.llmfoundry.models.hf.fake_hub import FakeHub, serving

ROOT = Path(__file__).parents[3]
TOKENIZER = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
SAFETENSORS = {"model-00001-of-00002.safetensors", "model.safetensors.index.json"}
PYTORCH = {"pytorch_model.bin"}
REST = {"config.json", "1_Pooling/config.json"}
LEFT = {"tf_model.h5", "flax_model.msgpack", "old.ckpt"}


def files_in(folder: Path) -> set[str]:
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if not name.startswith(".cache")}


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    for name in TOKENIZER | SAFETENSORS | PYTORCH | REST | LEFT:
        path = tmp_path / "repo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}")
    return tmp_path / "repo"


@pytest.fixture
def hub(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(model_download_utils, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with serving(repo) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, TOKENIZER | SAFETENSORS | REST),
        ({"prefer_safetensors": False}, TOKENIZER | PYTORCH | REST),
        ({"tokenizer_only": True}, TOKENIZER),
    ],
)
def test_hub(hub: FakeHub, settings: Any, expected: set[str], tmp_path: Path) -> None:
    download_from_hf_hub("tiny/model", str(tmp_path / "out"), token="hf_x", **settings)
    assert files_in(tmp_path / "out") == expected
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "content of tokenizer.json"
    assert hub.tokens == {"Bearer hf_x"}


def test_hub_with_one_format_only(hub: FakeHub, repo: Path, tmp_path: Path) -> None:
    for name in SAFETENSORS:
        (repo / name).unlink()
    download_from_hf_hub("tiny/model", str(tmp_path / "out"))
    assert files_in(tmp_path / "out") == TOKENIZER | PYTORCH | REST
    (repo / "pytorch_model.bin").unlink()
    with pytest.raises(ValueError, match="tiny/model has no weights"):
        download_from_hf_hub("tiny/model", str(tmp_path / "out"))


def test_hub_trouble_is_tried_again_and_a_wrong_name_is_not(hub: FakeHub, tmp_path: Path) -> None:
    hub.n_failures = 2
    download_from_hf_hub("tiny/model", str(tmp_path / "out"), tokenizer_only=True)
    assert files_in(tmp_path / "out") == TOKENIZER
    hub.n_failures = 100
    with pytest.raises(HfHubHTTPError, match="503"):
        download_from_hf_hub("tiny/model", str(tmp_path / "out"))
    assert hub.n_failures == 97
    hub.n_failures = 0
    with pytest.raises(RepositoryNotFoundError):
        download_from_hf_hub("tiny/other", str(tmp_path / "out"))


class _Files(SimpleHTTPRequestHandler):
    answers: list[int] = []

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def do_GET(self) -> None:
        if self.answers:
            self.send_error(self.answers.pop())
        else:
            super().do_GET()


@pytest.fixture
def files(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(file_helpers, "_WEB_BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(_Files, "answers", [])
    handler = partial(_Files, directory=str(repo.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_file_server(files: str, repo: Path, tmp_path: Path) -> None:
    (repo / "with space & more.txt").write_text("x")
    download_from_http_fileserver(f"{files}/repo", str(tmp_path / "out"))
    assert files_in(tmp_path / "out") == files_in(repo)
    assert (tmp_path / "out" / "1_Pooling" / "config.json").read_text().endswith("config.json")
    download_from_http_fileserver(f"{files}/repo/", str(tmp_path / "tok"), tokenizer_only=True)
    assert files_in(tmp_path / "tok") == TOKENIZER


def test_file_server_links_that_lead_elsewhere_are_left(
    files: str, repo: Path, tmp_path: Path
) -> None:
    page = "<a href='?C=N;O=D'>Name</a><a href='../'>up</a><a href='/'>top</a><a name='x'>y</a>"
    page += "<a href='tokenizer.json#top'>it</a><a href='https://example.invalid/f'>other</a>"
    page += f"<a href='%2e%2e/secret'>s</a><a href='{files}/repo//secret'>s</a>"
    (repo / "index.html").write_text(page)
    (repo.parent / "secret").write_text("secret")
    (repo / "secret").write_text("mine")
    download_from_http_fileserver(f"{files}/repo", str(tmp_path / "a" / "out"))
    assert files_in(tmp_path / "a") == {"out/tokenizer.json", "out/secret"}
    assert (tmp_path / "a" / "out" / "secret").read_text() == "mine"


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([401], PermissionError),
        ([404], ValueError),
        ([418], RuntimeError),
        ([503] * 3, RuntimeError),
    ],
)
def test_file_server_refusals(
    files: str, answers: list[int], error: type[Exception], tmp_path: Path
) -> None:
    _Files.answers[:] = answers
    with pytest.raises(error, match=str(answers[0])) as raised:
        download_from_http_fileserver(f"{files}/repo", str(tmp_path / "out"))
    assert raised.type is error or error is RuntimeError
    assert not (tmp_path / "out").exists()
    _Files.answers[:] = [503, 503]
    download_from_http_fileserver(f"{files}/repo", str(tmp_path / "out"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="lists no file"):
        download_from_http_fileserver(f"{files}/empty", str(tmp_path / "out2"))


PASSWORD = "swordfish-1"


@pytest.fixture
def oras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A program named oras that writes its arguments and standard input into its output folder."""
    program = tmp_path / "bin" / "oras"
    program.parent.mkdir()
    program.write_text(
        f"""#!{sys.executable}
import pathlib, sys
password = sys.stdin.read()
if "bad" in sys.argv[2]:
    sys.exit("refused " + password)
folder = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
(folder / "asked").write_text("\\n".join([*sys.argv[1:], password]))
"""
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "config.yaml").write_text(
        "models: {mpt: models/mpt:v1, broken: models/bad:v1}\n"
        "tokenizers: {mpt: tokenizers/mpt:v1}\n"
    )
    for name, text in {"registry": "r.io", "username": "me", "password": PASSWORD}.items():
        (tmp_path / name).write_text(text + "\n")
    return [str(tmp_path / "config.yaml"), str(tmp_path), str(tmp_path / "out")]


def test_oras(oras: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for tokenizer_only, kind in ((False, "models"), (True, "tokenizers")):
        download_from_oras("mpt", *oras, tokenizer_only, concurrency=3)
        pull = ["pull", f"r.io/{kind}/mpt:v1", "--output", oras[2], "--concurrency", "3"]
        expected = [*pull, "--username", "me", "--password-stdin", PASSWORD]
        assert (tmp_path / "out" / "asked").read_text().split("\n") == expected
    with pytest.raises(ValueError, match=r"no 'gpt' under models; it has \['broken', 'mpt'\]"):
        download_from_oras("gpt", *oras)
    with pytest.raises(subprocess.CalledProcessError) as raised:
        download_from_oras("broken", *oras)
    for text in (str(raised.value), raised.value.stderr, caplog.text):
        assert PASSWORD not in text
    assert "refused ***" in caplog.text


def test_oras_that_is_not_installed(
    oras: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match="install it"):
        download_from_oras("mpt", *oras)


def test_the_command(
    hub: FakeHub,
    files: str,
    oras: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = str(ROOT / "scripts" / "misc" / "download_model.py")
    monkeypatch.setenv("HF_TOKEN", "hf_environment")

    def run(*arguments: str) -> set[str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        common = ["--save-dir", str(folder), "--tokenizer-only"]
        monkeypatch.setattr(sys, "argv", [script, arguments[0], *common, *arguments[1:]])
        runpy.run_path(script, run_name="__main__")
        return files_in(folder)

    registry = ["--model", "mpt", "--config-file", oras[0], "--credentials-dir", oras[1]]
    assert run("hf", "--model", "tiny/model", "--no-prefer-safetensors") == TOKENIZER
    assert hub.tokens == {"Bearer hf_environment"}
    assert run("http", "--url", f"{files}/repo") == TOKENIZER
    assert run("oras", *registry, "--concurrency", "2") == {"asked"}
    missing = ("http", "--url", f"{files}/nothing")
    assert run(*missing, "fallback-hf", "--model", "tiny/model") == TOKENIZER
    assert run(*missing, "fallback-oras", *registry) == {"asked"}
    assert "(HTTP 404)" in caplog.text and "Falling back to fallback-oras" in caplog.text
    with pytest.raises(ValueError, match="404"):
        run(*missing)
