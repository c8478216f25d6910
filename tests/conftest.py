"""Shapes in signatures are checked while tests run; the table of oracles is printed at the end."""

import gc
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.quick import EXAMPLES, is_quick, thin
from tests.typecheck import CHECKED, Switch, choose, install

if not is_quick():
    install("lexray")

import pytest
import torch
from hypothesis import HealthCheck, settings
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
settings.register_profile(
    "lexray",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("quick", settings.get_profile("lexray"), max_examples=EXAMPLES)
settings.load_profile("quick" if is_quick() else "lexray")  # the same examples everywhere
torch.set_num_threads(1)  # the tensors are tiny: a second thread only waits

ORACLES = pytest.StashKey[dict[str, list[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="Of every test a few cases; see quick.py."
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no worker is left alone with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    if config.getoption("--quick"):
        kept = thin(items)
        left = {id(item) for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in left])
        items[:] = kept
    choose(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Calls are checked in the tests that were chosen, and between them."""
    Switch.on = item.stash[CHECKED]
    try:
        return (yield)
    finally:
        Switch.on = True


def pytest_collection() -> None:
    """Until all is imported there is no garbage worth a search."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported stays: it need not be searched for garbage again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """At the end it goes: libraries complain of what is left."""
    gc.unfreeze()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ORACLES] = {}


@pytest.fixture
def oracle_log(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """Which oracle ran for which model: filled by the tests, printed at the end."""
    return request.config.stash[ORACLES]


@pytest.fixture
def devices(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """As /dev/null and /dev/full, but whoever could replace those replaces copies."""
    names = ("null", "full")
    if os.geteuid() != 0:
        return Path("/dev/null"), Path("/dev/full")
    folder = tmp_path_factory.mktemp("dev")
    try:
        for name in names:
            os.mknod(folder / name, 0o666 | stat.S_IFCHR, Path("/dev", name).stat().st_rdev)
        (folder / "null").write_bytes(b"x")
    except OSError as error:
        pytest.skip(f"no devices can be made here: {error}")
    return folder / "null", folder / "full"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a worker of pytest-xdist logged joins the whole."""
    log = node.config.stash[ORACLES]
    for name, ran in getattr(node, "workeroutput", {}).get("oracles", {}).items():
        log.setdefault(name, []).extend(ran)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands its log to the process that prints it."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["oracles"] = session.config.stash[ORACLES]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    log = terminalreporter.config.stash[ORACLES]
    if log:
        terminalreporter.section("oracles that ran, by model")
        width = max(map(len, log))
        for name, ran in log.items():
            terminalreporter.write_line(f"{name:{width}}  {', '.join(dict.fromkeys(ran))}")
