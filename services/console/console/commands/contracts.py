"""`tokenfleet contracts`: JSON Schema of every message and AsyncAPI of the control plane, made from the code."""

from pathlib import Path

import click
import msgspec

from console.schemas import schemas
from tokenfleet.asyncapi import document as asyncapi_document

ASYNCAPI = "control-plane.asyncapi.json"


@click.command(epilog="Example: tokenfleet contracts --write docs/contracts")
@click.option(
    "--write",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the files here instead of printing one document.",
)
def contracts(folder: Path | None) -> None:
    """Print or write the JSON Schema of the messages and the AsyncAPI document of the control plane."""
    documents = {f"{name}.schema.json": schema for name, schema in schemas().items()}
    documents[ASYNCAPI] = asyncapi_document()
    if folder is None:
        click.echo(_pretty(documents))
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in documents.items():
        (folder / name).write_text(_pretty(document) + "\n")
    click.echo(f"{len(documents)} documents written to {folder}.")


def _pretty(document: object) -> str:
    return msgspec.json.format(msgspec.json.encode(document, order="deterministic")).decode()
