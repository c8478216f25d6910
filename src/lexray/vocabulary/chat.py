"""Conversations as the text that a model was trained on: through its tokenizer's own template."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lexray.checkpoint.plain import read_plain
from lexray.errors import LexrayError
from lexray.vocabulary import jinja

FILE = "chat_template.jinja"
LONGEST = 1 << 20
"""No template is longer than this many characters."""
PATIENCE = 60
"""Seconds after which a template is taken to have no end."""

Message = Mapping[str, Any]


def is_chat(prompt: Any) -> bool:
    """Whether a prompt is a list of messages, each with a role."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and len(prompt) > 0
        and all(isinstance(message, Mapping) and "role" in message for message in prompt)
    )


def find_template(asset: Callable[[str], Path | None], config: Mapping[str, Any]) -> str | None:
    """The template beside a tokenizer: a file of its own, or in `tokenizer_config.json`."""
    if path := asset(FILE):
        return _check(read_plain(path).decode("utf-8", "replace"))
    return read_template(config.get("chat_template"))


def read_template(given: Any) -> str | None:
    """A template as configs have it: a text, or several with names."""
    if isinstance(given, list):
        named = {t.get("name"): t.get("template") for t in given if isinstance(t, Mapping)}
        given = named.get("default") or next(iter(named.values()), None)
    return _check(given) if isinstance(given, str) and given else None


def _check(template: str) -> str:
    if len(template) > LONGEST:
        raise LexrayError(f"this model's chat template has {len(template):,} characters; none has")
    return template


def render_chat(
    template: str | None, messages: Sequence[Message], special: Mapping[str, str]
) -> str:
    """A conversation as text. After what the user says, the model's turn is opened.

    `special` are the tokenizer's own tokens by name: `bos_token`, `eos_token`, …
    """
    if template is None:
        raise LexrayError(
            "this model's tokenizer has no chat template, so it was not made for conversations; "
            "give the prompt as a text"
        )
    said = [_message(message) for message in messages]
    opened = said[-1]["role"] != "assistant"
    values = {"messages": said, "add_generation_prompt": opened, **special}
    return _run(template, values)


def _message(message: Message) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not isinstance(content, (str, list)):
        raise LexrayError(
            f'a message is {{"role": "user", "content": "…"}}, not {str(dict(message))[:200]}'
        )
    return dict(message)


def _run(template: str, values: Mapping[str, Any]) -> str:
    try:
        given = json.dumps({"template": template, "values": values}).encode()
    except (TypeError, ValueError) as error:
        raise LexrayError(f"a conversation is made of texts: {error}") from error
    command = [sys.executable, "-B", str(Path(jinja.__file__))]
    try:
        ran = subprocess.run(command, input=given, capture_output=True, timeout=PATIENCE)
        answer = json.loads(ran.stdout)
    except subprocess.TimeoutExpired as error:
        raise LexrayError(
            f"this model's chat template did not end within {PATIENCE} seconds"
        ) from error
    except ValueError as error:
        raise LexrayError(
            "this model's chat template could not be rendered: it took too much memory, or "
            "jinja2 is not installed"
        ) from error
    if "error" in answer:
        raise LexrayError(f"this model's chat template refuses the conversation: {answer['error']}")
    return str(answer["text"])
