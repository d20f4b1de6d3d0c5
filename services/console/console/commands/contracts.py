"""`tokenfleet contracts`: JSON Schema of every message, made from the contracts themselves."""

from pathlib import Path

import click
import msgspec

from console.schemas import schemas


@click.command(epilog="Example: tokenfleet contracts --write docs/contracts")
@click.option(
    "--write",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a file per message here instead of printing one document.",
)
def contracts(folder: Path | None) -> None:
    """Print or write the JSON Schema of the messages."""
    documents = schemas()
    if folder is None:
        click.echo(_pretty(documents))
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in documents.items():
        (folder / f"{name}.schema.json").write_text(_pretty(document) + "\n")
    click.echo(f"{len(documents)} schemas written to {folder}.")


def _pretty(document: object) -> str:
    return msgspec.json.format(msgspec.json.encode(document, order="deterministic")).decode()
