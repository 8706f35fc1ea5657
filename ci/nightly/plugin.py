"""pytest plugin of one session: turns instead of one run of each test, and a record of every turn on disk.

Loaded with `-p ci.nightly.plugin` beside `properties.plugin`, in the controller and in its workers.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol  # what plugins that run a test again are known to use

from properties.plugin import examples_of
from properties.session import run_of
from properties.turn import Turn, faults_of

from .session import Session
from .state import Folder
from .turns import HEARD
from .worker import Worker

SESSION = pytest.StashKey[Session]()
WORKER = pytest.StashKey[Worker]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `ci.nightly.supervise` gives."""
    parser.getgroup("msda").addoption("--msda-nightly", metavar="DIR", help="folder of a nightly run")


def _folder(config: pytest.Config) -> Folder:
    return Folder(Path(config.getoption("msda_nightly")))


def pytest_configure(config: pytest.Config) -> None:
    """Set up either side."""
    if hasattr(config, "workerinput"):
        config.stash[WORKER] = Worker(_folder(config), run_of(config))
        return
    config.stash[SESSION] = Session(config, _folder(config))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close what a worker has open."""
    if WORKER in config.stash:
        config.stash[WORKER].close()


# ---------------------------------------------------------------- the worker


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Run one turn. Everything is torn down after it: the next turn may be of the same test."""
    worker = item.config.stash.get(WORKER, None)
    if worker is None:
        return None
    worker.begin(item.nodeid)
    if worker.late:
        return True
    # What the last turn of this test has left on it.
    item.user_properties.clear()
    item._report_sections.clear()
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    runtestprotocol(item, nextitem=None)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_msda_turn(item: pytest.Item) -> Turn | None:
    """Tell the harness how to draw."""
    worker = item.config.stash.get(WORKER, None)
    return None if worker is None else worker.turn(examples_of(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note what is wrong in a case, while its evidence is there; the last report of a turn carries its record."""
    worker = item.config.stash.get(WORKER, None)
    if worker is not None and call.when == "teardown":
        item.user_properties.append((HEARD, worker.end()))
    made = yield
    if worker is not None and call.excinfo is not None and made.failed and call.when == "call":
        worker.raised = faults_of(call.excinfo.value)
    return made


# ---------------------------------------------------------------- the controller


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out turns."""
    return config.stash[SESSION].scheduler(log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Take the record of a turn from its last report."""
    node = getattr(report, "node", None)
    if node is not None and SESSION in node.config.stash:
        node.config.stash[SESSION].hear(node, report)


@pytest.hookimpl(optionalhook=True, trylast=True)
def pytest_handlecrashitem(crashitem: str, report: Any) -> None:
    """Make a record of a turn that ended its worker; the harness has found its case by now."""
    report.node.config.stash[SESSION].crashed(crashitem, report)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Write how the session ended, once what ended workers has been confirmed."""
    yield
    if SESSION in session.config.stash:
        session.config.stash[SESSION].finish()
