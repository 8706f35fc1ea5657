"""Hypothesis profiles: how a run draws, and what it keeps.

Hypothesis loads a profile of its own when it sees CI=true (derandomised, no database). Every mode here sets every
field that this profile would change, so that a run does the same thing wherever it is started.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import ExampleDatabase

# A property runs on every dtype cell, so this many cases are shared by about ten items. The interpreter needs
# a tenth of a second and more for a case that a GPU does in a few milliseconds.
EXAMPLES = {"cpu": 60, "cuda": 1000}

# `explain` reruns a failing case under a tracer: it says nothing about kernels and launches many.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One way to run the properties.

    Attributes:
        name: as given to `--msda-profile`.
        seed: fixed session seed, or None for a fresh one in each run.
        keeps_failures: whether failing cases are stored under `.hypothesis` and tried first in the next run.
        examples: cases per property, by device type.
    """

    name: str
    seed: int | None
    keeps_failures: bool
    examples: Mapping[str, int]

    def session_seed(self, given: int | None) -> int:
        """Return the seed asked for, else the profile's, else a fresh one that is short enough to type."""
        if given is not None:
            return given
        return self.seed if self.seed is not None else secrets.randbelow(2**32)


PROFILES = {
    "default": Profile(name="default", seed=None, keeps_failures=True, examples=EXAMPLES),
    "ci": Profile(name="ci", seed=0, keeps_failures=False, examples=EXAMPLES),
    # Wherever it runs, `CI=true` or not: other cases every night, and what failed is tried again.
    "nightly": Profile(name="nightly", seed=None, keeps_failures=True, examples=EXAMPLES),
}


def choose(name: str | None, environment: Mapping[str, str]) -> Profile:
    """Return the named profile; without a name "ci" where the environment says CI, else "default".

    Raises:
        ValueError: there is no such profile.
    """
    if name is None:
        name = "ci" if environment.get("CI", "").lower() not in ("", "0", "false") else "default"
    if name not in PROFILES:
        raise ValueError(f"profile: {name!r} given, expected one of {', '.join(sorted(PROFILES))}")
    return PROFILES[name]


def _common() -> dict[str, Any]:
    return {
        "deadline": None,  # a first case compiles kernels
        "print_blob": False,  # a failure's record is its case file, which outlives the Hypothesis version
        "report_multiple_bugs": False,
        "phases": PHASES,
        # Only the check that speaks about time. A strategy that filters or draws too much must be heard.
        "suppress_health_check": (HealthCheck.too_slow,),
    }


def load(profile: Profile) -> None:
    """Make the profile the default of every `@given` test in this process."""
    # `derandomize` is what fixes the draws of a test that does not go through the harness; it excludes a database.
    forgetful: dict[str, Any] = {} if profile.keeps_failures else {"derandomize": True, "database": None}
    name = f"msda-{profile.name}"
    settings.register_profile(name, parent=settings.get_profile("default"), **_common(), **forgetful)
    settings.load_profile(name)


def item_settings(
    *, examples: int, database: ExampleDatabase | None, phases: tuple[Phase, ...] = PHASES, repeated: bool = False
) -> settings:
    """Settings of one property on one dtype cell; the seed is set beside them.

    Args:
        examples: cases to draw.
        database: of this item, None for none.
        phases: what Hypothesis does.
        repeated: the item is one of thousands of runs, of which some would fail a check of its strategy by chance.
    """
    changed: dict[str, Any] = {"phases": phases}
    if repeated:
        changed["suppress_health_check"] = tuple(HealthCheck)
    return settings(
        parent=settings.get_profile("default"),
        max_examples=examples,
        derandomize=False,
        database=database,
        **(_common() | changed),
    )


def item_seed(session_seed: int, name: str, call: int) -> int:
    """Seed of one drawing loop: the same for the same names on every machine and with any number of workers."""
    digest = hashlib.sha256(f"{session_seed}\0{name}\0{call}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


@contextmanager
def draws_independent_of_imports() -> Iterator[None]:
    """Keep Hypothesis from drawing constants that it finds in the modules imported so far.

    Which modules those are depends on the order of the tests and on how they were selected, so the same seed would
    draw other cases in another worker. There is no setting for it; without these names nothing is changed.
    """
    from hypothesis.internal.conjecture import providers  # noqa: PLC0415

    cache = getattr(providers, "CONSTANTS_CACHE", None)
    collect = getattr(providers, "_get_local_constants", None)
    nothing = getattr(providers, "Constants", None)
    if cache is None or collect is None or nothing is None:
        yield
        return
    empty = nothing()
    clear: Callable[[], None] = getattr(getattr(cache, "cache", None), "clear", lambda: None)
    with contextlib.ExitStack() as stack:
        stack.callback(clear)
        stack.callback(setattr, providers, "_get_local_constants", collect)
        clear()
        providers._get_local_constants = lambda: empty
        yield
