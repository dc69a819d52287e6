"""``paddler-trio tls``: certificates for a balancer, of an authority of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paddler_trio.cli.access.tls_fingerprint import fingerprint
from paddler_trio.cli.terminal import one_line_errors, stderr, stdout

tls = typer.Typer(
    no_args_is_help=True, help="Make certificates for a balancer, of an authority of your own."
)

FolderOption = Annotated[
    Path, typer.Option("--folder", help="Of the authority: ca.pem and ca.key, and what it signed.")
]


@tls.command("new-ca")
def new_ca(
    folder: FolderOption,
    name: Annotated[
        str, typer.Option(help="What people see as the issuer.")
    ] = "paddler-trio authority",
) -> None:
    """Make an authority, valid for ten years. Clients get ca.pem; ca.key stays where it is."""
    from paddler_trio.net.tls.own_authority import new_authority

    with one_line_errors():
        cert = new_authority(folder, name)
    stdout().print(str(cert), soft_wrap=True)
    stderr().print(
        f"give {cert} to clients (--tls-ca), and {cert.with_suffix('.key')} to nobody; next: "
        f"paddler-trio tls new-cert NAME --folder {folder}",
        soft_wrap=True,
    )


@tls.command("new-cert")
def new_cert(
    host: Annotated[
        list[str], typer.Argument(help="Names and addresses by which clients dial the balancer.")
    ],
    folder: FolderOption,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long it is valid.")] = 365,
    out: Annotated[
        str, typer.Option(help="What the files are called: NAME.pem and NAME.key in the folder.")
    ] = "server",
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Put it in the place of one that is there: renew it."),
    ] = False,
) -> None:
    """Make a certificate and its key, signed by the authority in the folder."""
    from paddler_trio.net.tls.own_authority import new_certificate

    if not out.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise typer.BadParameter("letters, digits, dots, - and _ only", param_hint="--out")
    with one_line_errors():
        cert, key = new_certificate(folder, host, stem=out, days=days, replace=replace)
    for path in (cert, key):
        stdout().print(str(path), soft_wrap=True)
    stderr().print(
        "a balancer that uses it reads it again by itself"
        if replace
        else f"next: paddler-trio balancer --tls-cert {cert} --tls-key {key}; the same with "
        "--replace renews it",
        soft_wrap=True,
    )


tls.command()(fingerprint)
