"""Chats with a small model that has learned two dialogues by heart, and with SmolLM2."""

import io
import os
import runpy
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from llmfoundry.command_utils.hf_chat import (
    ChatMessage,
    Conversation,
    ReplyStreamer,
    TooLongError,
    hf_chat,
)
from llmfoundry.utils.exceptions import ChatTemplateError
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

ROOT = Path(__file__).parents[3]
SMOLLM2 = ROOT / "data" / "smollm2"
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
DIALOGUES = [
    ["the cat or the dog", "the cat sat on the mat", "and then", "it was the best of times"],
    ["tell of the log", "the dog sat on the log", "and then", "it was the worst of times"],
]
SYSTEM = "be of use"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Llama of two layers that knows the dialogues, and its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    tokenizer = train_tokenizer(pad=True, size=320)
    tokenizer.chat_template = TEMPLATE
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=256,
        )
    )
    rows = []
    for dialogue in DIALOGUES:
        roles = ["user", "assistant"] * 2
        messages = [{"role": "system", "content": SYSTEM}]
        messages += [{"role": r, "content": c} for r, c in zip(roles, dialogue, strict=True)]
        rows.append(tokenizer.apply_chat_template(messages, tokenize=False))
    batch = tokenizer(rows, return_tensors="pt", padding=True, return_token_type_ids=False)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(120):
        optimizer.zero_grad()
        loss = model(**batch, labels=labels).loss
        loss.backward()
        optimizer.step()
    path = tmp_path_factory.mktemp("chat")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def _args(monkeypatch: pytest.MonkeyPatch, folder: Path, *flags: str) -> Namespace:
    path = ROOT / "scripts" / "inference" / "hf_chat.py"
    common = ["-n", str(folder), "--temperature", "0", "--max_new_tokens", "40", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [str(path), *common, "--system_prompt", SYSTEM, *flags])
    return runpy.run_path(str(path))["parse_args"]()


def _chat(
    monkeypatch: pytest.MonkeyPatch, folder: Path, typed: str, *flags: str
) -> list[ChatMessage]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    return hf_chat(_args(monkeypatch, folder, *flags))


def _conversation(folder: Path, stops: list[str] | None = None, **settings: Any) -> Conversation:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    settings = {
        "max_new_tokens": 40,
        "do_sample": False,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **settings,
    }
    return Conversation(model, tokenizer, settings, SYSTEM, stops)


@pytest.mark.parametrize("dialogue", DIALOGUES)
def test_the_second_answer_depends_on_the_first_turn(
    folder: Path,
    dialogue: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    history = _chat(monkeypatch, folder, f"{dialogue[0]}\n\n{dialogue[2]}\n\nquit\n\nnever\n\n")
    assert [message.content for message in history] == [SYSTEM, *dialogue]
    out = capsys.readouterr().out
    assert dialogue[1] in out and dialogue[3] in out and "</s>" not in out


def test_commands(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = (
        "\n\ntell of\nthe log\n\nhistory\n\nhistory_fmt\n\nclear\n\nsystem\n\nbe brief\n\nhistory\n"
    )
    history = _chat(monkeypatch, folder, typed, "--warmup", "no")
    assert history == [ChatMessage("system", "be brief")]
    out = capsys.readouterr().out
    assert "user: tell of\nthe log\nassistant: " in out
    assert f"[system]{SYSTEM}</s>[user]tell of\nthe log</s>[assistant]" in out
    assert out.rstrip().endswith("system: be brief\n\nUser:") or "system: be brief" in out


def test_what_was_read_is_read_once(folder: Path) -> None:
    lengths: list[int] = []
    replies = []
    for use_cache in (True, False):
        chat = _conversation(folder, use_cache=use_cache)
        chat.model.register_forward_pre_hook(
            lambda module, args, kwargs: lengths.append(kwargs["input_ids"].size(1)),
            with_kwargs=True,
        )
        chat.turn(DIALOGUES[0][0])
        lengths.clear()
        replies.append(chat.turn(DIALOGUES[0][2]))
        whole = chat.tokenizer.apply_chat_template(
            [vars(message) for message in chat.history[:-1]], add_generation_prompt=True
        )["input_ids"]
        assert lengths[0] < len(whole) / 2 if use_cache else lengths[0] == len(whole)
    assert replies == [DIALOGUES[0][3]] * 2
    chat = _conversation(folder)  # a changed past is read anew
    chat.turn(DIALOGUES[0][0])
    chat.turns.clear()
    assert [chat.turn(text) for text in DIALOGUES[1][::2]] == DIALOGUES[1][1::2]


def test_a_full_sliding_window_is_read_anew(folder: Path) -> None:
    from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(folder)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = MistralConfig(vocab_size=len(tokenizer), sliding_window=8, **sizes, **heads)
    torch.manual_seed(0)
    model = MistralForCausalLM(config).eval()
    replies = []
    for use_cache in (True, False):
        settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 2}
        chat = Conversation(model, tokenizer, {**settings, "use_cache": use_cache}, SYSTEM)
        replies.append([chat.turn(text) for text in ("the cat", "and then", "the dog")])
    assert replies[0] == replies[1]


def test_the_ends_that_only_the_generation_config_names(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of Gemma and Phi-3, whose turns end with a token that is not the tokenizer's end."""
    import shutil

    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    text = _chat(monkeypatch, folder, f"{DIALOGUES[0][0]}\n\n")[-1].content
    chat = _conversation(tmp_path)
    end = chat.tokenizer(text)["input_ids"][3]
    chat.model.generation_config.eos_token_id = [end, chat.tokenizer.eos_token_id]
    chat.model.generation_config.save_pretrained(tmp_path)
    cut = _chat(monkeypatch, tmp_path, f"{DIALOGUES[0][0]}\n\n")[-1].content
    assert len(cut) < len(text) and text.startswith(cut)
    own = str(chat.tokenizer.eos_token_id)
    flags = ["--eos_token_id", own]
    assert _chat(monkeypatch, tmp_path, f"{DIALOGUES[0][0]}\n\n", *flags)[-1].content == text


def test_a_refused_conversation_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing to show, a template without a system message, and a way back."""
    chat = _conversation(folder)
    chat.tokenizer.chat_template = TEMPLATE.replace(
        "[{{", "{% if m.role == 'system' %}{{ raise_exception('none here') }}{% endif %}[{{", 1
    )
    chat.system_prompt = ""
    typed = "history_fmt\n\nthe cat\n\nsystem\n\nbe brief\n\nhistory_fmt\n\nlost\n\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed + "system\n\n\nand then\n\nsystem\n\n"))
    chat()
    assert [m.content for m in chat.history[::2]] == ["the cat", "and then"]
    assert capsys.readouterr().out.count("none here If it takes no system message") == 2


@pytest.mark.parametrize("stop", ["sat on", "t on the m"])
def test_stop_strings_of_several_tokens(
    folder: Path, stop: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = _conversation(folder, [stop, "<s>"])
    assert len(chat.tokenizer.tokenize(stop)) > 1
    assert chat.stop_strings == [stop]
    assert chat.generate_kwargs["eos_token_id"] == [
        chat.tokenizer.eos_token_id,
        chat.tokenizer.bos_token_id,
    ]
    expected = DIALOGUES[0][1].partition(stop)[0]
    assert chat.turn(DIALOGUES[0][0]) == expected.strip()
    assert capsys.readouterr().out == expected + "\n"


def test_streaming_holds_back_what_may_become_a_stop_string(
    capsys: pytest.CaptureFixture[str],
) -> None:
    streamer = ReplyStreamer(None, ["User: x"])
    shown = ""
    for text, expected in [("so ", "so "), ("User", ""), (": ", ""), ("y U", "User: y ")]:
        streamer.on_finalized_text(text)
        shown = capsys.readouterr().out
        assert shown == expected, text
    streamer.on_finalized_text("ser: x and more")
    streamer.on_finalized_text("still more", stream_end=True)
    assert capsys.readouterr().out == "\n"
    assert streamer.reply == "so User: y "


def test_the_oldest_turns_leave_first(folder: Path) -> None:
    chat = _conversation(folder)
    chat.turn(DIALOGUES[0][0])
    whole = chat._prompt([*chat.turns, ChatMessage("user", "and then")])
    chat.limit = whole.size(1) + 40
    assert torch.equal(chat._prompt([*chat.turns, ChatMessage("user", "and then")]), whole)
    chat.limit -= 1
    cut = chat.tokenizer.decode(chat._prompt([*chat.turns, ChatMessage("user", "and then")])[0])
    assert cut == f"[system]{SYSTEM}</s>[user]and then</s>[assistant]"
    chat.limit = 3
    with pytest.raises(TooLongError, match="limit is 3"):
        chat.turn("and then")
    assert len(chat.turns) == 2


def test_the_limit_of_the_flag_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = f"{'a b c ' * 30}\n\n{DIALOGUES[0][0]}\n\n"
    history = _chat(monkeypatch, folder, typed, "--max_seq_len", "60")
    assert history[-1].content == DIALOGUES[0][1] and len(history) == 3
    assert "--max_seq_len" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no room"):
        _chat(monkeypatch, folder, "", "--max_seq_len", "40")


def test_sampling_follows_the_seed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--temperature", "5", "--top_k", "0", "--max_new_tokens", "8", "--seed"]
    one, again, two = (
        _chat(monkeypatch, folder, "the cat\n\n", *flags, seed)[-1] for seed in "112"
    )
    assert one == again != two


def test_no_template_is_refused_before_the_model_is_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = train_tokenizer(pad=True)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ChatTemplateError, match=r"hf_generate\.py"):
        _chat(monkeypatch, tmp_path, "hi\n\n")
    tokenizer.chat_template = "{{ raise_exception('no system here') }}"
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ChatTemplateError, match="no system here.*--system_prompt"):
        _chat(monkeypatch, tmp_path, "hi\n\n")


@pytest.mark.slow
def test_smollm2_at_a_terminal() -> None:
    """Through a pseudo-terminal; with the system prompt of its own template."""
    import pty

    if not (SMOLLM2 / "config.json").is_file():
        pytest.skip("data/smollm2 is not there; make it with scripts/misc/fetch_smollm2.py")
    script = str(ROOT / "scripts" / "inference" / "hf_chat.py")
    command = [sys.executable, script, "-n", str(SMOLLM2), "--temperature", "0", "--warmup", "no"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*command, "--device", "cpu", "--max_new_tokens", "64", "--system_prompt", ""],
        stdin=theirs,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    )
    os.write(ours, b"What is the capital of France?\n\nquit\n\n")
    out, _ = process.communicate(timeout=300)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0 and "Paris" in out, out
