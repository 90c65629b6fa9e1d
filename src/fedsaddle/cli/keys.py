"""`fedsaddle keys`: who is the server, and who may join."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer
from typer.core import TyperGroup


class _Making(TyperGroup):
    """A group that makes keys if it is given a folder instead of a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = ["make", *args]
        return super().parse_args(ctx, args)


keys_app = typer.Typer(
    name="keys", cls=_Making, help="Make and look after the keys of a deployment.", no_args_is_help=True
)

Keys = Annotated[Path, typer.Argument(help="A folder that fedsaddle keys has made.")]
Hosts = Annotated[list[str] | None, typer.Option(help="A name or address the server will be reached by.")]


@keys_app.command("make")
def make_keys(
    folder: Annotated[Path, typer.Argument(help="A new folder; or one with keys, to add nodes to.")],
    nodes: Annotated[int, typer.Option(help="How many devices may join.")] = 4,
    host: Hosts = None,
) -> None:
    """Make a CA, the server's certificate and a key for each device; `make` need not be said."""
    from fedsaddle.flower import keys

    keys.make(folder, nodes, host or [])
    print(f"server   {folder / 'server'}\nnodes    {folder / 'node-0'} to {folder / f'node-{nodes - 1}'}")


@keys_app.command("renew")
def renew_keys(
    folder: Keys,
    host: Hosts = None,
    days: Annotated[int, typer.Option(help="How long it will be good for.")] = 825,
) -> None:
    """Make a new certificate for the server, for the names it had or for other ones."""
    from fedsaddle.flower import keys

    late = keys.renew(folder, host or [], days)
    print(f"renewed  {folder / 'server' / 'server.crt'}; start the server again")
    if late:
        print(f"renewed  {folder / 'server' / 'ca.crt'}; every device needs a copy, as ca.crt beside its key")


@keys_app.command("revoke")
def revoke_key(
    folder: Keys, client: Annotated[int, typer.Argument(help="The number of the device.")]
) -> None:
    """Lock a device out."""
    from fedsaddle.flower import keys

    keys.revoke(folder, client)
    print(f"revoked  node-{client}; start the server again")


@keys_app.command("list")
def list_keys(folder: Keys) -> None:
    """Show who may join, and until when certificates are good."""
    from fedsaddle.flower import keys

    for line in keys.held(folder):
        print(line)
