"""The page and the step summary: what the templates are given, and the templates' filters."""

from __future__ import annotations

from typing import Any

from . import figures, pictures, scores, svg, tables, text, verdict
from .load import Run

# A step summary of GitHub ends at a megabyte, and its readers long before.
MOST_TOLD = 20
MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|~"})


def html(run: Run) -> str:
    """Return the page: one file that needs nothing else.

    Raises:
        ValueError: the extra `report` is not installed.
    """
    try:
        with svg.style():
            panels = _panels(run)
    except ImportError as error:
        raise ValueError(_missing(error)) from None
    found = verdict.faults(run)
    return _fill("report.html.j2", run, panels=panels, shown=pictures.shown(run, found))


def summary(run: Run) -> str:
    """Return the run in Markdown, as a step of GitHub Actions shows it."""
    return _fill("summary.md.j2", run, most=MOST_TOLD)


def _panels(run: Run) -> dict[str, Any]:
    points = run.points
    across = {
        output: panels
        for number, output in enumerate(points.outputs)
        if (panels := figures.against_magnitude(points, output, number=number))
    }
    return {
        "histograms": figures.histograms(points),
        "magnitude": across,
        "collisions": figures.against_collisions(points, "grad_value"),
        "trend": figures.trend(scores.trend(run)),
        "dtypes": points.dtypes,
    }


def _fill(template: str, run: Run, **more: Any) -> str:
    try:
        import jinja2  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise ValueError(_missing(error)) from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ci.report"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "count": text.count,
        "ratio": text.ratio,
        "rate": text.rate,
        "percent": text.percent,
        "title": text.title,
        "family": text.family,
        "md": markdown,
        "fenced": fenced,
    }
    columns, rows = tables.properties(run)
    shards = verdict.shards(run)
    return environment.get_template(template).render(
        subject=text.one_line(run.nightly.get("subject", text.NONE)),
        notes=run.notes,
        head=verdict.verdict(run),
        facts=verdict.facts(run),
        faults=verdict.faults(run),
        crashes=verdict.crashes(run),
        shard_columns=list(shards[0]) if shards else [],
        shard_rows=[list(shard.values()) for shard in shards],
        skipped=verdict.skipped(run),
        versions=verdict.versions(run),
        missed=verdict.below_floor(run.nightly),
        columns=columns,
        rows=rows,
        variant_columns=tables.VARIANT_COLUMNS,
        coverage=tables.coverage(run),
        agreement=tables.determinism(run),
        agreement_columns=tables.AGREEMENT_COLUMNS,
        lossy=tables.lossy(run),
        compiles=tables.compiles(run),
        arms=tables.bandit(run),
        arm_columns=tables.ARM_COLUMNS,
        score=scores.score(run),
        standings=scores.STANDINGS,
        nights=scores.trend(run),
        dash=text.NONE,
        **more,
    )


def markdown(value: Any) -> str:
    """Write a text into a cell or a line of Markdown so that it stays text."""
    return text.one_line(value).translate(MARKDOWN)


def fenced(lines: str) -> str:
    """Write lines as a block of code that nothing in them can end."""
    fence = "```"
    while fence in lines:
        fence += "`"
    return f"{fence}text\n{lines}\n{fence}"


def _missing(error: ImportError) -> str:
    return f"report: {error.name} is not installed; expected the extra 'report': pip install 'msda-verify[report]'"
