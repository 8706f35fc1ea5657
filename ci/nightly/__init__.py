"""Nightly fuzzing: the corpus, then all properties in turns until the time is spent.

command -> supervise --starts--> pytest with `plugin`: schedule --asks--> plan --asks--> bandit
                                     workers: worker --draws through--> properties.harness
turns.jsonl, cases-*.jsonl --read by--> result, progress -> nightly.json -> ci.report
"""
