"""The app's own files: a fixed list, read from the package."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from lexray.result.assets import join_modules, read_asset
from lexray.result.theme import style_sheet

KINDS = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
OWN = "lexray.web"


@cache
def own_names() -> frozenset[str]:
    """What lies in the folder of static files."""
    return frozenset(entry.name for entry in files(OWN).joinpath("static").iterdir())


@cache
def text_of(name: str) -> str | None:
    """A file's text by its name; None for what is none of ours."""
    if name == "theme.css":
        return style_sheet() + levels()
    if name == "flow.css":
        return read_asset("lexray.flow", "static/flow.css")
    if name == "flow.js":
        return join_modules("lexray.flow", "static/flow.js")
    if name in ("attention.css", "attention.js"):
        return read_asset("lexray.trace.read", f"static/{name}")
    return read_asset(OWN, f"static/{name}") if name in own_names() else None


def levels() -> str:
    """Shares as classes: where no style stands inline, a bar's length is a class."""
    return "".join(f".w{n}{{--w:{n}%;--s:{n / 100:g}}}" for n in range(101)) + "\n"


async def static_file(request: Request) -> Response:
    name = request.path_params["name"]
    text = text_of(name)
    if text is None:
        return PlainTextResponse("there is no such file\n", 404)
    tag = f'"{blake2b(text.encode(), digest_size=12).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(text, media_type=KINDS[name.rpartition(".")[2]], headers=headers)
