"""What is left out of Triton's interpreter is left out only where nothing comes of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from properties import interpreter


@pytest.fixture
def builder(msda_device: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    if msda_device == "cuda":
        pytest.skip("only Triton's interpreter is changed")
    from triton.runtime import interpreter as triton_interpreter  # noqa: PLC0415 - after the device is settled

    found: Any = triton_interpreter.interpreter_builder
    monkeypatch.setattr(found, "options", dataclasses.replace(found.options, sanitize_overflow=True))
    return found


def test_overflow_checks_that_nobody_reads_are_skipped(builder: Any):
    interpreter.skip_unread_checks()
    assert not builder.options.sanitize_overflow
    before = builder.options
    interpreter.skip_unread_checks()
    assert builder.options is before


def test_overflow_checks_that_are_asserted_stay(builder: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(builder, "options", dataclasses.replace(builder.options, debug=True))
    interpreter.skip_unread_checks()
    assert builder.options.sanitize_overflow
