"""Towards the Hugging Face hub: a folder with a model's code that loads by itself, and uploads."""

import ast
import fnmatch
import functools
import glob
import importlib.util
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = [
    "FLATTENED",
    "edit_files_for_hf_compatibility",
    "source_of_module",
    "split_hub_uri",
    "upload_to_hub",
    "weight_files",
]

FLATTENED = ("llmfoundry",)
HUB_ADDRESS = re.compile(
    r"hf://(?!datasets/|spaces/|buckets/|kernels/)([^/@\s]+/[^/@\s]+)(?:@([^/]+))?(?:/(.*))?"
)
OF_WEIGHTS = (
    "model*.safetensors*",
    "pytorch_model*",
    "adapter_model*",
    "adapter_config.json",
)
"""What transformers takes weights from: what is left of another model, it may load instead."""
DEFERRED = re.compile(r'"([\w.]+):(\w+)"')
REMOVED = (
    "composer",
    "omegaconf",
    "llmfoundry.metrics",
    "llmfoundry.eval",
    "llmfoundry.builders",
    "llmfoundry.utils.builders",
    "llmfoundry.models.mpt.composer_mpt",
)


def edit_files_for_hf_compatibility(
    folder: str | Path,
    flatten_imports_prefix: Sequence[str] = FLATTENED,
    remove_imports_prefix: Sequence[str] = REMOVED,
) -> None:
    """Makes the modules in a folder import each other from that folder, and nothing of ours.

    Imports of this project become relative, and the modules that they name are copied beside; what
    only training needs is taken out. Every module's file name must be its own.

    Args:
        folder: The folder with the modules, which are rewritten.
        flatten_imports_prefix: Packages whose modules are copied into the folder.
        remove_imports_prefix: Packages whose imports are removed; this goes first.

    Raises:
        ValueError: Two modules would have the same file name.
    """
    folder = Path(folder)
    homes: dict[str, str] = {}
    waiting = sorted(folder.glob("*.py"))
    while waiting:
        path = waiting.pop()
        text, wanted = _flatten(
            path.read_text(), tuple(flatten_imports_prefix), tuple(remove_imports_prefix)
        )
        path.write_text(text)
        for module in wanted:
            name = _flat_name(module)
            if homes.setdefault(name, module) != module:
                raise ValueError(
                    f"{module} and {homes[name]} would both become {name}.py in {folder}."
                )
            copy = folder / f"{name}.py"
            if not copy.exists():
                copy.write_text(source_of_module(module))
                waiting.append(copy)


def _flat_name(module: str) -> str:
    return module.rpartition(".")[2]


def source_of_module(module: str) -> str:
    """Returns the text of a module, which is found but not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"The module {module}, which a model's code imports, is not there.")
    return Path(spec.origin).read_text()


def _has_prefix(module: str, prefixes: Sequence[str]) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def _is_left_out(node: ast.stmt, removed: Sequence[str]) -> bool:
    """Says whether a statement is an import to remove, a trainer's class, or ``__all__``."""
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and _has_prefix(node.module or "", removed)
    if isinstance(node, ast.ClassDef):
        return node.name.startswith("Composer")
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


# Kept, because Python 3.11 fails now and then where two threads parse (cpython issue 106905).
@functools.cache
def _flatten(
    text: str, flattened: tuple[str, ...], removed: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    """Returns a module's text as it stands in the folder, and the modules that it needs there."""
    lines = text.splitlines()
    edits: list[tuple[int, int, str]] = []
    wanted: list[str] = []
    for node in ast.parse(text).body:
        start, end = node.lineno - 1, node.end_lineno or node.lineno
        if _is_left_out(node, removed):
            edits.append((start, end, ""))
        elif isinstance(node, ast.ImportFrom) and _has_prefix(node.module or "", flattened):
            module = node.module or ""
            wanted.append(module)
            names = ", ".join(a.name + (f" as {a.asname}" if a.asname else "") for a in node.names)
            edits.append((start, end, f"from .{_flat_name(module)} import {names}"))
    for start, end, replacement in reversed(edits):
        lines[start:end] = [replacement] if replacement else []
    text = "\n".join(lines) + "\n"
    for module, attribute in DEFERRED.findall(text):  # what a registry imports at its first use
        if _has_prefix(module, flattened):
            wanted.append(module)
            text = text.replace(f'"{module}:{attribute}"', f'".{_flat_name(module)}:{attribute}"')
    return text, tuple(wanted)


def split_hub_uri(uri: str) -> tuple[str, str | None, str]:
    """Splits ``hf://owner/name[@revision][/folder]`` into repository, revision and folder.

    Raises:
        ValueError: It is no address of a model's repository.
    """
    match = HUB_ADDRESS.fullmatch(uri)
    if match is None:
        raise ValueError(
            f"{uri} is no address of a model; write hf://owner/name[@branch][/folder]."
        )
    repo, revision, folder = match.groups()
    return repo, revision, folder or ""


def weight_files(names: Iterable[str]) -> set[str]:
    """Returns those of a folder's files, not of its subfolders, that weights are loaded from."""
    return {
        name
        for name in names
        if "/" not in name and any(fnmatch.fnmatchcase(name, each) for each in OF_WEIGHTS)
    }


def upload_to_hub(
    folder: str | Path,
    repo: str,
    *,
    path_in_repo: str = "",
    revision: str | None = None,
    allow_patterns: Sequence[str] | None = None,
    ignore_patterns: Sequence[str] = (),
    commit_message: str | None = None,
    create_pr: bool = False,
) -> str:
    """Uploads a folder to a model's repository on the hub and returns the address of the commit.

    The repository is made, private, if it does not exist, but not for a pull request. The hub is
    ``HF_ENDPOINT``, the token the one of ``HF_TOKEN`` or of ``hf auth login``. A folder with
    weights, if all of it is committed, takes the place of weights in other files.

    Args:
        folder: The folder.
        repo: ``owner/name``.
        path_in_repo: The folder in the repository; its root by default.
        revision: The branch to commit to; the main one by default.
        allow_patterns: Globs of the files to upload; None uploads all.
        ignore_patterns: Globs of files to leave out.
        commit_message: What the commit says.
        create_pr: Opens a pull request, and returns its address, instead of committing.
    """
    from huggingface_hub import HfApi

    api, is_whole = HfApi(), not (create_pr or allow_patterns or ignore_patterns)
    has_weights = bool(weight_files(each.name for each in Path(folder).iterdir()))
    if not create_pr:
        api.create_repo(repo, private=True, exist_ok=True)
        if revision is not None:
            api.create_branch(repo, branch=revision, exist_ok=True)
    stale: set[str] = set()
    if is_whole and has_weights:
        root = f"{path_in_repo.strip('/')}/" if path_in_repo else ""
        names = api.list_repo_files(repo, revision=revision)
        stale = weight_files(name.removeprefix(root) for name in names if name.startswith(root))
    done = api.upload_folder(
        folder_path=str(folder),
        repo_id=repo,
        path_in_repo=path_in_repo,
        revision=revision,
        allow_patterns=None if allow_patterns is None else list(allow_patterns),
        ignore_patterns=list(ignore_patterns),
        delete_patterns=[glob.escape(name) for name in stale] or None,
        commit_message=commit_message,
        create_pr=create_pr,
    )
    return str(done.pr_url if create_pr else done.commit_url)
