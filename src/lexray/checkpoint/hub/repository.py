"""Models on the Hugging Face Hub: what a repository holds, and the few files of it that are needed.

The environment (`HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`) is read at each call,
not only when huggingface_hub is imported, so that setting it late works too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import (
    HfApi,
    constants,
    get_token,
    hf_hub_download,
    hf_hub_url,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lexray.checkpoint.assets import CONFIG, QUANTISED, TOKENIZER_FILES
from lexray.checkpoint.gguf.file import part_names
from lexray.checkpoint.hub.grammar import (
    check_file,
    check_repository,
    check_revision,
    check_token,
    is_file_name,
    split_id,
)
from lexray.checkpoint.hub.session import limit
from lexray.checkpoint.plain import LONGEST
from lexray.checkpoint.safetensors import weight_map
from lexray.errors import LexrayError

Token = str | bool | None
"""A token, True or None for the one that is logged in, False for none at all."""

SAFETENSORS = "model.safetensors"
PICKLE = "pytorch_model.bin"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
TIMEOUT = 30.0
"""Seconds of silence to wait for when the Hub is asked about a repository."""
LONGEST_ANSWER = 1 << 25
"""Bytes of that answer: a repository of 10⁵ files needs a third of it."""
ANSWER_WITHIN = 120.0
FILE_WITHIN = 3600.0
DOWNLOAD_WITHIN = 7 * 86400.0
"""Seconds for the whole answer, a whole small file, a whole file of weights."""
LARGE = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
"""Files of weights, which may be as long as the server says."""


def fetch_folder(repo_id: str, *, revision: str | None = None, token: Token = None) -> Path:
    """Download what lexray needs of a model into the Hub's cache; returns its snapshot folder.

    Weights come in one format only: safetensors, else `pytorch_model.bin`, else an adapter. For a
    repository of GGUF files, or for `org/name/file.gguf`, returns that file's path.

    `fetch_folder("gpt2")` is …/snapshots/607a30d7…, `fetch_folder("org/name-GGUF/name.Q8_0.gguf")`
    is …/snapshots/…/name.Q8_0.gguf.
    """
    repo_id, gguf = split_id(repo_id)
    repository = Repository.resolve(repo_id, revision, token)
    weights = _list_parts(repository, gguf) if gguf else _weights(repository)
    small = [name for name in (CONFIG, *QUANTISED, *TOKENIZER_FILES) if name in repository.files]
    if weights[0].endswith(".gguf"):
        small = []  # a GGUF file carries its own config and tokenizer
    path = [repository.download(name) for name in (*small, *weights)][-1]
    repository.remember(weights[-1])
    return path if path.suffix == ".gguf" else path.parent


def commit_of(path: Path) -> str | None:
    """The commit whose snapshot in the Hub's cache `path` belongs to."""
    parts = path.parts
    at = max((i for i, part in enumerate(parts[:-1]) if part == "snapshots"), default=None)
    return None if at is None else parts[at + 1]


@dataclass(frozen=True)
class Repository:
    """A model's repository at one commit."""

    id: str
    revision: str
    """As it was asked for: a branch, a tag or a commit."""
    commit: str
    files: frozenset[str]
    """Every file; offline, those that are in the cache."""
    token: Token = None
    offline: bool = False

    @classmethod
    def resolve(cls, repo_id: str, revision: str | None = None, token: Token = None) -> Repository:
        """Ask the Hub for the commit and its files; without a connection, look into the cache."""
        revision = check_revision(revision or constants.DEFAULT_REVISION)
        check_repository(repo_id)
        if is_offline():
            return cls._from_cache(repo_id, revision, token)
        try:
            with limit(f"{repo_id} at {revision}", LONGEST_ANSWER, ANSWER_WITHIN):
                api = HfApi(endpoint=endpoint(), token=token)
                info = api.model_info(repo_id, revision=revision, timeout=TIMEOUT)
        except LexrayError:
            raise
        # huggingface_hub lets through the errors of whichever HTTP library its version is built on.
        except Exception as error:
            if _is_outage(error):
                try:
                    return cls._from_cache(repo_id, revision, token)
                except LexrayError:
                    pass
            raise explain(error, f"{repo_id} at {revision}") from error
        if not isinstance(info.sha, str) or not info.sha:
            raise LexrayError(f"{endpoint()} did not say which commit {repo_id} at {revision} is")
        commit = check_token(info.sha, "commit", endpoint())
        listed = (sibling.rfilename for sibling in info.siblings or ())
        files = frozenset(n for n in listed if isinstance(n, str) and is_file_name(n))
        return cls(repo_id, revision, commit, files, token)

    @classmethod
    def _from_cache(cls, repo_id: str, revision: str, token: Token) -> Repository:
        try:
            # No patterns match no files: which of them are there is for the caller to judge.
            folder = Path(
                snapshot_download(
                    repo_id,
                    revision=revision,
                    cache_dir=cache_dir(),
                    local_files_only=True,
                    allow_patterns=[],
                )
            )
        except (LocalEntryNotFoundError, HFValidationError) as error:
            raise explain(error, f"{repo_id} at {revision}") from error
        files = frozenset(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )
        return cls(repo_id, revision, folder.name, files, token, offline=True)

    def download(self, filename: str) -> Path:
        """The file in the Hub's cache, downloaded if it is not there."""
        return self._download(filename, self.commit)

    def remember(self, filename: str) -> None:
        """Let the cache know which commit the revision is now, so that it opens offline later."""
        if self.offline or self.revision == self.commit:
            return
        known = try_to_load_from_cache(
            self.id, filename, revision=self.revision, cache_dir=cache_dir()
        )
        if not isinstance(known, str) or commit_of(Path(known)) != self.commit:
            self._download(filename, self.revision)

    def _download(self, filename: str, revision: str) -> Path:
        check_file(filename, self.id)
        large = filename.endswith(LARGE)
        longest, seconds = (None, DOWNLOAD_WITHIN) if large else (LONGEST, FILE_WITHIN)
        try:
            with limit(f"{filename} of {self.id} at {self.revision}", longest, seconds):
                path = hf_hub_download(
                    self.id,
                    filename,
                    revision=revision,
                    token=self.token,
                    endpoint=endpoint(),
                    cache_dir=cache_dir(),
                    local_files_only=self.offline,
                )
        except LexrayError:
            raise
        except Exception as error:  # as above
            raise explain(error, f"{filename} of {self.id} at {self.revision}") from error
        return Path(path)

    def url(self, filename: str) -> str:
        """Where the Hub serves the file at this commit."""
        return hf_hub_url(self.id, filename, revision=self.commit, endpoint=endpoint())


def authorization(token: Token) -> dict[str, str]:
    """The header that shows `token`, or the one that is logged in, to the Hub."""
    if token is False or (token is None and constants.HF_HUB_DISABLE_IMPLICIT_TOKEN):
        return {}
    held = token if isinstance(token, str) else get_token()
    if token is True and not held:
        raise _explain_refusal("the model", "to be opened with a token, but none is logged in:")
    return {"Authorization": f"Bearer {held}"} if held else {}


def endpoint() -> str:
    """The Hub's address, without a slash at its end."""
    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def is_offline() -> bool:
    """Whether `HF_HUB_OFFLINE` forbids requests."""
    late = os.environ.get("HF_HUB_OFFLINE", "").upper() in constants.ENV_VARS_TRUE_VALUES
    return late or constants.HF_HUB_OFFLINE


def cache_dir() -> Path:
    """The folder of huggingface_hub's cache."""
    if folder := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(os.path.expandvars(folder)).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(os.path.expandvars(home)).expanduser() / "hub"
    return Path(constants.HF_HUB_CACHE)


def explain(error: Exception, what: str) -> LexrayError:
    """One sentence for what went wrong between us and the Hub over `what`."""
    match error:
        case GatedRepoError():
            return _explain_refusal(what, "gated: accept its terms on the Hub, then")
        case RevisionNotFoundError():
            return LexrayError(f"{what}: the repository has no such revision; check its branches")
        case RepositoryNotFoundError():
            return _explain_refusal(what, "not on the Hub, or private: check the name, or")
        case HFValidationError():
            return LexrayError(f"{what}: a Hub id looks like org/name")
        case LocalEntryNotFoundError() if is_offline():
            return LexrayError(
                f"{what} is not in {cache_dir()}, and HF_HUB_OFFLINE is set; unset it to download"
            )
        case LocalEntryNotFoundError():
            return LexrayError(
                f"{what} is not in {cache_dir()}, and {endpoint()} cannot be reached; "
                "check the connection"
            )
        case EntryNotFoundError():
            return LexrayError(f"{what}: the repository has no such file")
        case LocalTokenNotFoundError():
            return _explain_refusal(what, "to be opened with a token, but none is logged in:")
        case HfHubHTTPError() if _status(error) in (401, 403):
            return _explain_refusal(what, f"refused to this token (HTTP {_status(error)}):")
        case HfHubHTTPError() if _status(error):
            return LexrayError(f"{what}: {endpoint()} answers HTTP {_status(error)}; try later")
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return LexrayError(f"{what}: {endpoint()} cannot be reached ({reason}); check the connection")


def _explain_refusal(what: str, why: str) -> LexrayError:
    return LexrayError(f"{what} is {why} pass token=… or run `hf auth login`")


def _status(error: HfHubHTTPError) -> int | None:
    response: Any = getattr(error, "response", None)
    return getattr(response, "status_code", None)


def _is_outage(error: Exception) -> bool:
    """Whether the Hub gave no answer about the repository: no connection, or a failing server."""
    if isinstance(error, HfHubHTTPError):
        status = _status(error)
        return status is None or status == 429 or status >= 500
    return not isinstance(error, HFValidationError | LocalTokenNotFoundError)


def _list_parts(repository: Repository, gguf: str) -> list[str]:
    """A GGUF file, or all parts of the split one that it belongs to."""
    every = part_names(gguf)
    if absent := [name for name in every if name not in repository.files]:
        raise _nothing(repository, f"no file {absent[0]}", _ggufs(repository))
    return every


def _ggufs(repository: Repository) -> list[str]:
    """Its GGUF files, of split ones the first parts."""
    ggufs = (name for name in repository.files if name.endswith(".gguf"))
    return sorted({part_names(name)[0] for name in ggufs})


def _weights(repository: Repository) -> list[str]:
    """The files of weights to fetch: the best format that the repository has."""
    for single in (SAFETENSORS, PICKLE):
        if single in repository.files:
            return [single]
        if (index := f"{single}.index.json") in repository.files:
            return [index, *_shards(repository, index)]
    adapters = [name for name in ADAPTER_WEIGHTS if name in repository.files]
    if adapters and ADAPTER_CONFIG in repository.files:
        return [ADAPTER_CONFIG, adapters[0]]
    ggufs = _ggufs(repository)
    if len(ggufs) > 1:
        raise LexrayError(
            f"{repository.id} has several GGUF files: {', '.join(ggufs)}; "
            f"open one of them as {repository.id}/{ggufs[0]}"
        )
    if not ggufs:
        raise _nothing(repository, f"neither {SAFETENSORS}, {PICKLE}, an adapter nor GGUF", [])
    return _list_parts(repository, ggufs[0])


def _shards(repository: Repository, index: str) -> list[str]:
    shards = sorted(set(weight_map(repository.download(index)).values()))
    if absent := [name for name in shards if name not in repository.files]:
        raise _nothing(repository, f"no shard {absent[0]}, which {index} names", [])
    return shards


def _nothing(repository: Repository, what: str, instead: list[str]) -> LexrayError:
    hint = f"; there are {', '.join(instead)}" if instead else ""
    if not repository.offline:
        return LexrayError(f"{repository.id} at {repository.revision} has {what}{hint}")
    why = "HF_HUB_OFFLINE is set" if is_offline() else f"{endpoint()} cannot be reached"
    return LexrayError(
        f"{repository.id} at {repository.revision} has {what} in {cache_dir()}, and {why}{hint}"
    )
