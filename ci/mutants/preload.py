"""Imports what a forked worker needs, in the server that it is forked from; nothing here may touch a device."""

import properties.probe
import properties.test_corpus
import properties.verdict  # noqa: F401

from . import controls, hunter, schedule, worker  # noqa: F401

for _turn in (*schedule.TURNS, schedule.CORPUS):
    _turn.load()
