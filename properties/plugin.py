"""pytest plugin: options, device and seed of a run, the `harness` fixture, and the summary.

Loaded with `-p properties.plugin`. Where it is only installed, it does nothing until one of its options is given or
a test asks for `harness`.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from properties import (
    budget,
    casefile,
    crashes,
    database,
    devices,
    expected,
    failures,
    gather,
    journal,
    profiles,
    report,
    turn,
)
from properties.casefile import SHIPPED
from properties.corpus_order import corpus_first
from properties.kinds import kind_of
from properties.session import Run, is_active, run_of, tell

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

    from properties.harness import Harness

CRASHES = pytest.StashKey[crashes.Crashes]()
DATABASE = pytest.StashKey["ExampleDatabase"]()
VARIANTS = pytest.StashKey[int]()


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the hook by which another plugin runs properties in turns."""
    pluginmanager.add_hookspecs(turn)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the `--msda-*` options."""
    group = parser.getgroup("msda", "verification of deformable attention kernels")
    group.addoption("--msda-subject", metavar="MODULE:CALLABLE", help=f"operator to verify (default: {SHIPPED})")
    group.addoption("--msda-device", choices=("auto", "cuda", "cpu"), help="where to run it (default: auto)")
    group.addoption(
        "--msda-examples", type=_positive, metavar="N", help="cases per property, shared evenly by its dtype cells"
    )
    group.addoption("--msda-seed", type=int, metavar="N", help="seed of every draw (default: a fresh one, printed)")
    group.addoption("--msda-profile", choices=sorted(profiles.PROFILES), help="default: ci when CI is set")
    group.addoption("--msda-case", metavar="FILE", help="check the recipe in this file instead of drawing any")
    group.addoption("--msda-report", metavar="DIR", help="write summary.json into this folder")
    group.addoption("--msda-json", metavar="FILE", help="write the summary as JSON to this file")
    group.addoption(
        "--msda-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="end a process whose case takes longer (default: 180; 0: never)",
    )
    group.addoption(
        "--msda-minimise",
        type=_seconds,
        metavar="SECONDS",
        help="time to make the numbers of a failing case smaller (default: 20; 0: not at all)",
    )
    group.addoption("--msda-expected", metavar="FILE", help="failures that are expected, as TOML; others fail the run")
    group.addoption("--msda-home", metavar="DIR", help="folder of failing cases and journals (default: .msda)")
    group.addoption(
        "--msda-database",
        action="append",
        metavar="ADDRESS",
        help="where failing draws are kept and tried first: a folder, redis://HOST:PORT/DB or github://OWNER/REPOSITORY",
    )
    group.addoption("--msda-target", action="store_true", help="steer the draws towards large errors")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} given, expected 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} given, expected 0 or more")
    return seconds


def _targets(config: pytest.Config) -> list[Path]:
    """Files that the summary goes to."""
    folder, file = config.getoption("msda_report"), config.getoption("msda_json")
    targets = [Path(file)] if file else []
    targets += [Path(folder) / "summary.json"] if folder else []
    return [failures.user_folder(config) / target for target in targets]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist what the controller has decided, and which GPU and how much of it it gets."""
    if is_active(node.config.option):
        tell(node)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return the workers of `-n auto`: by GPU memory on a GPU, one for each core without."""
    return run_of(config).device.workers(devices.cores()) if is_active(config.option) else None


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let idle workers take tests from busy ones: a property on one variant may take as long as ten on another."""
    chosen = any(argument.startswith(("--dist", "-d")) for argument in config.invocation_params.args)
    if is_active(config.option) and getattr(config.option, "numprocesses", None) and not chosen:
        config.option.dist = "worksteal"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Choose the interpreter before a conftest.py can import triton; workers inherit it from the environment."""
    options = early_config.known_args_namespace
    if is_active(options) and "PYTEST_XDIST_WORKER" not in os.environ:
        run_of(early_config, options)


def pytest_configure(config: pytest.Config) -> None:
    """Set this process up: device, profile, the way to the subject."""
    config.addinivalue_line("markers", "partial: judges whatever outputs the subject declares")
    if not is_active(config.option):
        return
    # A subject next to where pytest was started can be named without installing it.
    for folder in (str(failures.user_folder(config)), str(config.rootpath)):
        if folder not in sys.path:
            sys.path.append(folder)
    run = run_of(config)
    if not config.getoption("--hypothesis-profile", None):
        profiles.load(run.profile)
    if run.worker != "main":
        return
    # What is wrong with an option is one clear error here, and hundreds of failing tests or a lost summary later.
    try:
        if config.getoption("msda_subject"):
            run.load_subject()
        if config.getoption("msda_case"):
            _ = casefile.read(failures.user_folder(config) / config.getoption("msda_case"))
        expected.of(config)
        store_of(config)
        for target in _targets(config):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
    except (OSError, ValueError) as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the corpus. With `--msda-case`, keep the property that the case was recorded for, if it is there."""
    if is_active(config.option):
        corpus_first(items, workers=getattr(config, "workerinput", {}).get("workercount", 1))
    file = config.getoption("msda_case", None)
    if not file:
        return
    recorded = casefile.read(failures.user_folder(config) / file).property
    if any(item.nodeid == recorded for item in items):
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid != recorded])
        items[:] = [item for item in items if item.nodeid == recorded]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Confirm crashes and expected failures, and that something was run on a subject or a case that was named."""
    config = session.config
    if CRASHES in config.stash:
        config.stash[CRASHES].confirm()
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and exitstatus == 0 and expected.unmet(config, reporter):
        session.exitstatus = exitstatus = pytest.ExitCode.TESTS_FAILED
    named = config.getoption("msda_subject", None) or config.getoption("msda_case", None)
    if not named or exitstatus != 0 or reporter is None or hasattr(config, "workerinput"):
        return
    if reporter.stats.get("skipped") and not reporter.stats.get("passed"):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is tested, on what, and how to draw the same cases again."""
    if not is_active(config.option):
        return []
    run = run_of(config)
    workers = len(config.getoption("tx", None) or ()) or 1
    versions = ", ".join(f"{name} {version}" for name, version in gather.versions().items())
    drawn = f"{run.examples} cases per property"
    if config.getoption("msda_case"):
        drawn = f"the case in {config.getoption('msda_case')}"
    lines = [
        f"msda subject: {run.subject}",
        f"msda device: {run.device}; {workers} worker{'s' if workers > 1 else ''}",
        f"msda versions: {versions}",
        f"msda draws: profile {run.profile.name}, seed {run.seed}, {drawn}",
    ]
    shortage = run.device.shortage()
    lines += [f"msda memory: {shortage}"] if shortage else []
    return [*lines, *(f"msda journal: {line}" for line in crashes.rescue(config, run))]


def _header(config: pytest.Config) -> dict[str, Any]:
    """The facts of the header lines, for the machine-readable summary."""
    run = run_of(config)
    return {
        "subject": run.subject,
        "device": run.device.type,
        "device_name": str(run.device),
        "versions": gather.versions(),
        "profile": run.profile.name,
        "seed": run.seed,
        "examples": run.examples,
        "case": config.getoption("msda_case"),
        "workers": len(config.getoption("tx", None) or ()) or 1,
    }


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Count the variants of each property, before any of them is deselected or picked by its node id."""
    collected = yield
    functions = [node for node in collected.result if isinstance(node, pytest.Function)]
    counts = Counter(function.originalname for function in functions)
    for function in functions:
        # The session collects what was picked once more; the first count is that of the whole file.
        function.stash.setdefault(VARIANTS, counts[function.originalname])
    return collected


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """The subject under test, and the means to draw and judge cases for the property that asks for it."""
    import torch  # noqa: PLC0415 - after device and GPU are settled

    from properties.harness import MINIMISE_SECONDS, Harness  # noqa: PLC0415
    from properties.probe import facts, informed  # noqa: PLC0415

    config, item = request.config, request.node
    run = run_of(config)
    subject = run.load_subject()
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    refusal = subject.refuses(parameters["cell"]) if "cell" in parameters else None
    refusal = refusal or subject.lacking(run.device.type, everything=item.get_closest_marker("partial") is None)
    if refusal is not None:
        pytest.skip(refusal)
    run.compiles.start()
    torch.set_num_threads(1)
    test, bracket, variant = item.nodeid.partition("[")
    stats = report.ItemStats(test=test, variant=variant[:-1] if bracket else "", worker=run.worker)
    plan = config.hook.pytest_msda_turn(item=item)
    cuda = run.device.type == "cuda"
    if cuda:
        torch.zeros(1, device="cuda").item()  # creates the context, whose seconds are no part of a case
        budget.wait_for_room()
    _limit_memory(run)
    notes = failures.journal_of(item, run)
    device = torch.device(run.device.type)
    if subject.triton_atomics:
        # Here and not in the header: the process that only hands out work must not touch the GPU.
        subject, stats.facts = informed(subject, device), facts(device)

    def on_failure(recipe: Any, error: Exception) -> list[str]:
        kept = failures.keep(config, run, item.nodeid, recipe, str(error), error=error)
        stats.failure = kept.record
        return kept.lines

    yield Harness(
        subject=subject,
        device=device,
        limits=subject.limits(run.device.type),
        stats=stats,
        seed=run.seed if plan is None else plan.seed,
        examples=-(-run.examples // item.stash.get(VARIANTS, 1)) if plan is None else plan.examples,
        database=_examples_of(item) if plan is None else plan.database,
        case=_case(config, parameters.get("cell")),
        target=config.getoption("msda_target"),
        on_failure=on_failure,
        journal=notes,
        compiles=run.compiles,
        minimise_seconds=MINIMISE_SECONDS
        if config.getoption("msda_minimise") is None
        else config.getoption("msda_minimise"),
        turn=plan,
    )
    # A fault that nothing has waited for so far is this test's, and not that of the next one.
    notes.probe()
    notes.end()
    if stats.shrinks:
        # Exceptions and their frames refer to each other, and to the tensors of every case that failed.
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
    item.user_properties.append((gather.RECORD, stats.as_dict()))


@pytest.fixture
def msda_device(request: pytest.FixtureRequest) -> str:
    """Device type of the run, "cuda" or "cpu", for tests that bring a subject of their own."""
    return run_of(request.config).device.type


def store_of(config: pytest.Config) -> ExampleDatabase:
    """Return the database of this run, opened once.

    Raises:
        ValueError: one that was named cannot be opened.
    """
    if DATABASE not in config.stash:
        named = config.getoption("msda_database", None) or ()
        config.stash[DATABASE] = database.opened(named, root=config.rootpath, here=failures.user_folder(config))
    return config.stash[DATABASE]


def examples_of(item: pytest.Item) -> database.ItemDatabase:
    """Return the database of one property on one variant."""
    run = run_of(item.config)
    return database.ItemDatabase(store_of(item.config), item.nodeid, run.subject, run.device.type)


def _examples_of(item: pytest.Item) -> database.ItemDatabase | None:
    return examples_of(item) if run_of(item.config).profile.keeps_failures else None


def _limit_memory(run: Run) -> None:
    """Keep a worker within its share, once; a process that runs alone may take what there is."""
    if run.memory is None:
        return
    if run.device.type == "cuda":
        budget.cap_gpu(run.memory)
    else:
        budget.cap_host(run.memory)
    run.memory = None


def _case(config: pytest.Config, cell: Any) -> Any:
    """Read the recipe of `--msda-case`; skip the test when the recipe is of another dtype cell."""
    file = config.getoption("msda_case")
    if not file:
        return None
    try:
        recipe = casefile.read(failures.user_folder(config) / file).recipe
    except (OSError, ValueError) as error:
        pytest.fail(f"case: cannot read {file!r}: {error}", pytrace=False)
    if cell is not None and recipe.cell != cell:
        pytest.skip(f"the case in {file} is of {recipe.cell.name}")
    return recipe


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any) -> None:
    """Tell which case a worker was running when it ended, and run that case once more alone."""
    config = report.node.config
    config.stash.setdefault(CRASHES, crashes.Crashes()).note(crashitem, report)
    expected.forgive(config, report, "crash")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a property that does not hold by its story alone: the frames of the harness say nothing about the kernel."""
    made = yield
    error = None if call.excinfo is None else call.excinfo.value
    if error is not None and _tells_a_story(error) and made.failed and not item.config.getoption("fulltrace"):
        lines = str(error).splitlines() or [type(error).__name__]
        if item.config.get_verbosity() >= 1:
            lines += [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
        shown: Any = call.excinfo.getrepr(style="value", chain=False)  # type: ignore[union-attr]
        shown.reprtraceback.reprentries[0].lines[:] = lines
        if shown.reprcrash is not None:
            shown.reprcrash.message = lines[0]
        made.longrepr = shown
    if error is not None and made.failed:
        expected.forgive(item.config, made, kind_of(error))
    return made


def _tells_a_story(error: BaseException) -> bool:
    # By name: this process may not have imported the module, and a subject's package may bring its own.
    return isinstance(error, journal.DeviceLost) or any(
        base.__name__ == "PropertyFailed" for base in type(error).__mro__
    )


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Print the summary, and write it where it was asked for."""
    if not is_active(config.option):
        return
    summary = gather.summary(terminalreporter.stats, header={**_header(config), "exit": int(exitstatus)})
    if summary.items:
        terminalreporter.section("properties")
        is_terminal = bool(getattr(terminalreporter, "isatty", False)) and terminalreporter.hasmarkup
        width = terminalreporter._tw.fullwidth if is_terminal else 120  # pytest's own measure
        terminalreporter.write(report.render(summary, width=width, color=is_terminal))
    for line in expected.unmet(config, terminalreporter):
        terminalreporter.write_line(line, red=True)
    if hasattr(config, "workerinput"):
        # A worker that is ended early reports too; its part is not the run.
        return
    for path in _targets(config):
        path.write_text(summary.as_json())
        terminalreporter.write_line(f"summary written to {path}")
