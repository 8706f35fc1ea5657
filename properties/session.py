"""One pytest session: what the controller decides about device, seed and subject, and how its workers learn of it."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from properties import budget, devices, profiles
from properties.casefile import SHIPPED
from properties.compiles import CompileCounter

if TYPE_CHECKING:
    from properties.subject import Subject

# Name under which the controller's decisions reach its workers.
TOLD = "msda"
OPTIONS = (
    "subject",
    "device",
    "examples",
    "seed",
    "profile",
    "case",
    "report",
    "json",
    "target",
    "timeout",
    "minimise",
    "expected",
    "home",
    "database",
)
# One case with all that Hypothesis makes of it is over in a second; compiling and waiting for it takes some more.
TIMEOUT_SECONDS = 180.0


@dataclass(kw_only=True)
class Run:
    """What one pytest process knows about the run; workers are told by their controller.

    Attributes:
        profile: how cases are drawn and kept.
        seed: of the session.
        device: where the subject runs.
        subject: "package.module:callable".
        examples: cases per property, all variants together.
        timeout: seconds that one case may take before its process is ended, 0 for no limit.
        memory: MiB that this process may take, None for no limit.
        worker: name of this process, "main" when it runs the tests itself.
        compiles: the counter of this process.
        loaded: the subject, once it is imported.
    """

    profile: profiles.Profile
    seed: int
    device: devices.Device
    subject: str
    examples: int
    timeout: float = TIMEOUT_SECONDS
    memory: int | None = None
    worker: str = "main"
    compiles: CompileCounter = field(default_factory=CompileCounter)
    loaded: Subject | None = None

    def load_subject(self) -> Subject:
        """Import the subject, once."""
        if self.loaded is None:
            from properties.subject import load  # noqa: PLC0415 - imports torch and triton

            self.loaded = load(self.subject, device=self.device.type)
        return self.loaded


RUN = pytest.StashKey[Run]()


def is_active(options: argparse.Namespace) -> bool:
    """Whether this run is about the properties: the plugin was asked for by name, or one of its options was given."""
    named = "properties.plugin" in (getattr(options, "plugins", None) or ())
    return named or any(getattr(options, f"msda_{name}", None) not in (None, False) for name in OPTIONS)


def run_of(config: pytest.Config, options: argparse.Namespace | None = None) -> Run:
    """Return the run that this process belongs to, deciding on device and seed at the first call."""
    run = config.stash.get(RUN, None)
    if run is None:
        is_worker = hasattr(config, "workerinput")
        run = config.stash[RUN] = _worker_run(config) if is_worker else _new_run(options or config.option)
    return run


def _new_run(options: argparse.Namespace) -> Run:
    try:
        profile = profiles.choose(options.msda_profile, os.environ)
        device = devices.choose(options.msda_device or "auto")
        if device.type == "cpu":
            devices.prepare_interpreter()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    return Run(
        profile=profile,
        seed=profile.session_seed(options.msda_seed),
        device=device,
        subject=options.msda_subject or SHIPPED,
        examples=options.msda_examples or profile.examples[device.type],
        timeout=TIMEOUT_SECONDS if options.msda_timeout is None else options.msda_timeout,
        # For a process that runs the tests itself; workers share what there is.
        memory=budget.host_share(1) if device.type == "cpu" else device.share(device.gpu_of(0), 1),
    )


def _worker_run(config: pytest.Config) -> Run:
    told = config.workerinput[TOLD]  # type: ignore[attr-defined]
    gpus: tuple[devices.Gpu, ...] = ()
    if told["device"] == "cpu":
        devices.prepare_interpreter()
    elif told["gpu"] is not None:
        # Before torch asks the driver: afterwards it would be too late.
        os.environ["CUDA_VISIBLE_DEVICES"] = told["gpu"][0]
        gpus = (devices.Gpu(id=told["gpu"][0], name=told["gpu"][1]),)
    return Run(
        profile=profiles.PROFILES[told["profile"]],
        seed=told["seed"],
        device=devices.Device(type=told["device"], gpus=gpus),
        subject=told["subject"],
        examples=told["examples"],
        timeout=told["timeout"],
        memory=told["memory"],
        worker=config.workerinput["workerid"],  # type: ignore[attr-defined]
    )


def tell(node: Any) -> None:
    """Tell a worker of xdist what its controller has decided, and which GPU and how much memory it gets."""
    run = run_of(node.config)
    number = int("".join(filter(str.isdigit, node.gateway.id)) or 0)
    workers = len(node.config.getoption("tx", None) or ()) or 1
    gpu = run.device.gpu_of(number)
    node.workerinput[TOLD] = {
        "profile": run.profile.name,
        "seed": run.seed,
        "device": run.device.type,
        "gpu": None if gpu is None else [gpu.id, gpu.name],
        "memory": budget.host_share(workers) if run.device.type == "cpu" else run.device.share(gpu, workers),
        "subject": run.subject,
        "examples": run.examples,
        "timeout": run.timeout,
    }
