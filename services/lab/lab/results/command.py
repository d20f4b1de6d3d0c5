"""`tokenfleet lab report`: docs/results.md and HTML pages from the runs' JSON."""

from pathlib import Path

import click

from lab.results.markdown import write_results
from lab.results.read import read_runs
from lab.trust.markdown import rewrite


@click.command()
@click.option(
    "--runs",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("docs/runs"),
    show_default=True,
    help="A folder of files that `tokenfleet lab run SCENARIO --seeds N --json FILE` wrote.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("docs/results.md"),
    show_default=True,
    help="The document to write.",
)
@click.option(
    "--html",
    "html_folder",
    type=click.Path(path_type=Path),
    help="Also write a page per run with its plots here.",
)
@click.option(
    "--trust",
    "trust_folder",
    type=click.Path(path_type=Path),
    default=Path("docs/trust"),
    show_default=True,
    help="Holds engine.json and dynamo.json of `tokenfleet lab trust`; left alone if it is not there.",
)
@click.option(
    "--trust-page",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("docs/lab-trust.md"),
    show_default=True,
    help="The page whose figures are rewritten from them.",
)
def report(folder: Path, out: Path, html_folder: Path | None, trust_folder: Path, trust_page: Path) -> None:
    """Rebuild the results document from raw runs: each needs several seeds, TokenFleet and the usual baselines."""
    runs = read_runs(folder)
    write_results(runs, folder.as_posix(), out)
    click.echo(f"{out}: {len(runs)} scenarios from {folder}")
    if trust_folder.is_dir():
        rewrite(trust_page, trust_folder)
        click.echo(f"{trust_page}: from {trust_folder}")
    if html_folder:
        # Matplotlib takes a second to load, and the document needs no plots.
        from lab.results.page import write_page

        for run in runs:
            page = html_folder / f"{run.scenario}.html"
            write_page(run, page)
            click.echo(f"{page}")
