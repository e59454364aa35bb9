"""Uploads, against a hub on loopback."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub.errors import HfHubHTTPError

from llmfoundry.utils.huggingface_hub_utils import split_hub_uri, upload_to_hub
from tests.llmfoundry.utils.fake_hub import TOKEN, Hub, Repo, fake_hub

ROOT = Path(__file__).parents[3]

# Of huggingface_hub itself, when it uploads without its own protocol.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with fake_hub(monkeypatch) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    (made / "sub").mkdir(parents=True)
    (made / "config.json").write_text("{}")
    (made / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    (made / "model-00001-of-00002.safetensors").write_bytes(os.urandom(5000))
    (made / "model-00002-of-00002.safetensors").write_bytes(os.urandom(3000))
    (made / "sub" / "notes.bin").write_bytes(os.urandom(10))
    return made


def contents(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_a_folder_goes_into_a_private_repository(hub: Hub, folder: Path) -> None:
    address = upload_to_hub(folder, "me/model", commit_message="ba4")
    repo = hub.repos["me/model"]
    assert repo.visibility == "private" and repo.messages[-1] == "ba4"
    assert repo.files() == contents(folder)
    assert address == f"{hub.url}/me/model/commit/{repo.branches['main']}"
    assert len(hub.blobs) == 2, "weights go the way of large files"
    (folder / "config.json").write_text('{"a": 1}')
    upload_to_hub(folder, "me/model", commit_message="ba8")
    assert repo.files() == contents(folder)
    assert len(repo.commits) == 3


def test_weights_in_other_files_do_not_stay(hub: Hub, folder: Path) -> None:
    hub.repos["me/model"] = Repo()
    kept = {"notes.txt": b"a", "other/model.safetensors": b"b", "model_zoo/a.safetensors": b"c"}
    stale = {"model.safetensors": b"d", "pytorch_model.bin": b"e", "adapter_config.json": b"{}"}
    hub.repos["me/model"].commit("main", {**kept, **stale}, "first")
    upload_to_hub(folder, "me/model", ignore_patterns=["*.safetensors"])
    assert stale.keys() <= hub.repos["me/model"].files().keys(), "weights were not replaced"
    upload_to_hub(folder, "me/model")
    assert hub.repos["me/model"].files() == {**kept, **contents(folder)}
    upload_to_hub(folder, "me/model", path_in_repo="other")
    assert "other/model.safetensors" not in hub.repos["me/model"].files()


def test_some_files_to_a_folder_of_a_branch(hub: Hub, folder: Path) -> None:
    upload_to_hub(
        folder,
        "me/model",
        path_in_repo="ba4",
        revision="trial",
        ignore_patterns=["*.safetensors", "sub/*"],
    )
    repo = hub.repos["me/model"]
    assert repo.files() == {}
    assert set(repo.files("trial")) == {"ba4/config.json", "ba4/README.md"}


def test_a_pull_request(hub: Hub, folder: Path) -> None:
    with pytest.raises(HfHubHTTPError, match="404"):  # it opens none in what is not there
        upload_to_hub(folder, "me/model", allow_patterns=["*.json"], create_pr=True)
    hub.repos["me/model"] = Repo()
    hub.repos["me/model"].commit("main", {"a.txt": b"a"}, "first")
    address = upload_to_hub(folder, "me/model", allow_patterns=["*.json"], create_pr=True)
    assert address == f"{hub.url}/me/model/discussions/1"
    assert hub.repos["me/model"].files() == {"a.txt": b"a"}
    assert set(hub.repos["me/model"].files("refs/pr/1")) == {"a.txt", "config.json"}


def test_what_the_hub_refuses_is_an_error(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.refused = [("POST", "/commit/", 403)]
    with pytest.raises(HfHubHTTPError, match="403"):
        upload_to_hub(folder, "me/model")
    assert hub.repos["me/model"].files() == {}
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(HfHubHTTPError, match="401"):
        upload_to_hub(folder, "me/model")


def test_addresses() -> None:
    assert split_hub_uri("hf://me/model") == ("me/model", None, "")
    assert split_hub_uri("hf://me/model@dev/runs/a") == ("me/model", "dev", "runs/a")
    for wrong in ("hf://model", "hf://datasets/me/data", "s3://me/model", "hf:///me/model"):
        with pytest.raises(ValueError, match=r"write hf://owner/name"):
            split_hub_uri(wrong)


def test_the_command_opens_pull_requests_with_code(hub: Hub, tmp_path: Path) -> None:
    for name in ("me/one", "me/two"):
        hub.repos[name] = Repo()
        hub.repos[name].commit("main", {"config.json": b"{}"}, "first")
    offline = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "scripts/misc/update_hub_code.py"]
    done = subprocess.run(
        [*command, "--hf_repos_for_upload", "me/one", "me/two"],
        env={**os.environ, **offline, "HF_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"me/two: {hub.url}/me/two/discussions/1" in done.stdout
    for name in ("me/one", "me/two"):
        assert set(hub.repos[name].files()) == {"config.json"}
        added = set(hub.repos[name].files("refs/pr/1")) - {"config.json"}
        assert {"configuration_mpt.py", "modeling_mpt.py", "backbone.py"} <= added
        assert all(file.endswith(".py") for file in added)
