"""Conversations go through the tokenizer's own template, rendered as transformers does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import lexray as lx
from lexray.vocabulary import chat
from lexray.vocabulary.chat import is_chat, render_chat
from lexray.vocabulary.vocabulary import Vocabulary
from tests.cli.running import lexray, mistake, save_tiny

CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}{{ bos_token }}{% endif %}"
    "{{ '<' + m['role'] + '>' + m['content'] | trim + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<a>\\n' }}{% endif %}"
)
ASKED = [{"role": "user", "content": " the cat and the dog "}]
TALK = [{"role": "system", "content": "law"}, *ASKED, {"role": "assistant", "content": "courts"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = save_tiny(tmp_path_factory.mktemp("chat"), "llama")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHATML,
        "bos_token": "Z",
        "eos_token": "Q",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("messages", [ASKED, TALK])
def test_rendered_as_transformers_does(folder: Path, messages: list[dict[str, str]]) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    text = theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=messages[-1]["role"] != "assistant"
    )
    model = lx.Model.from_pretrained(folder)
    assert model.vocabulary.render_chat(messages) == text
    assert Vocabulary.from_transformers(theirs).render_chat(messages) == text
    trace = model.trace(messages, what="residual")
    assert trace.ids.tolist() == theirs.encode(text, add_special_tokens=False)
    both = model.trace([messages, "the cat"], what="residual")
    assert both[0].ids.tolist() == trace.ids.tolist()


def test_a_file_of_its_own_and_named_templates(tmp_path: Path) -> None:
    (tmp_path / chat.FILE).write_text("file: {{ messages[0].content }}")

    def asset(name: str) -> Path | None:
        path = tmp_path / name
        return path if path.exists() else None

    assert chat.find_template(asset, {"chat_template": "config"}) == (
        "file: {{ messages[0].content }}"
    )
    several = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    assert chat.read_template(several) == "b"
    assert chat.read_template([]) is None
    assert chat.read_template(7) is None


def test_what_is_no_conversation() -> None:
    assert not is_chat("user")
    assert not is_chat([{"content": "x"}])
    assert not is_chat([])
    with pytest.raises(lx.LexrayError, match="no chat template"):
        render_chat(None, ASKED, {})
    with pytest.raises(lx.LexrayError, match="a message is"):
        render_chat("x", [{"role": "user", "content": 3}], {})
    with pytest.raises(lx.LexrayError, match="no chat template"):
        lx.Model.from_pretrained("demo").trace(ASKED)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "Security"),
        ("{% for", "TemplateSyntaxError"),
        ("{{ 'x' * 10000000000 }}", "MemoryError|Overflow|too much memory"),
        ("{{ 'x' * 100000000 }}", "text of 100,000,000 characters"),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "Security"),
        ("{% include '/etc/passwd' %}", "TypeError|loader"),
    ],
)
def test_hostile_templates_are_refused(template: str, said: str) -> None:
    with pytest.raises(lx.LexrayError, match=said):
        render_chat(template, ASKED, {})


@pytest.mark.slow
def test_a_template_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "PATIENCE", 1)
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(lx.LexrayError, match="did not end"):
        render_chat(loops, ASKED, {})


def test_on_the_command_line(folder: Path) -> None:
    run = ("lens", folder, "the cat", "--raw", "--chat", "--format", "json")
    ran = lexray(*run, "--system", "law")
    assert ran.code == 0, ran.err
    texts = [token["text"] for token in ran.json["tokens"]]
    assert "".join(texts).endswith("<a>\n")
    assert "".join(texts).startswith("<system>law")
    assert "--chat" in mistake("lens", folder, "the cat", "--system", "law")
