"""Certificates and keys: who is the server, and who may join.

    KEYS/ca.key                 makes new certificates; keep it off the server
    KEYS/server/                ca.crt, server.crt, server.key, and nodes/node-N.pub for each that may join
    KEYS/node-N/                ca.crt and key: what client N gets, and nobody else

A private folder each, so that handing out one of them hands out nothing else.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import re
import shutil
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsaddle.errors import BadInput, check_count

CURVE = ec.SECP384R1()
DAYS = 3650  # of the CA, which every device has
SERVER_DAYS = 825  # of the server's certificate, which is renewed without them
SOON = 30  # days before the end of a certificate from which on it is spoken of
OWN_HOSTS = ("localhost", "127.0.0.1", "::1")
PEM, SSH = serialization.Encoding.PEM, serialization.Encoding.OpenSSH
BARE = serialization.NoEncryption()


def make(folder: Path, nodes: int, hosts: Sequence[str] = ()) -> None:
    """A CA, a server certificate for these names and addresses, and keys for nodes 0 to nodes - 1.

    Given a folder that has them already, the missing nodes' keys are added and nothing else is touched.
    """
    check_count("nodes", nodes, most=100_000)
    names = [_name(host) for host in dict.fromkeys([*hosts, *OWN_HOSTS])]
    server = folder / "server"
    if not (folder / "ca.key").exists():
        if folder.exists() and any(folder.iterdir()):
            raise BadInput(f"{folder} holds something else; choose an empty folder for the keys")
        _private_folder(folder)
        _private_folder(server)
        _private_folder(server / "nodes")
        _authority(folder, server, names)
    elif hosts:
        raise BadInput(f"{folder} has a server certificate already: fedsaddle keys renew {folder} --host ...")
    ca = (server / "ca.crt").read_bytes()
    for number in range(nodes):
        own, public = folder / f"node-{number}", server / "nodes" / f"node-{number}.pub"
        if public.exists():
            continue
        _private_folder(own)
        key = ec.generate_private_key(CURVE)
        _write(own / "key", key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, BARE))
        _write(own / "ca.crt", ca)
        _write(public, key.public_key().public_bytes(SSH, serialization.PublicFormat.OpenSSH))


ISSUER = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedSaddle deployment")])
SUBJECT = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedSaddle server")])
PKCS8 = serialization.PrivateFormat.PKCS8


def _authority(folder: Path, server: Path, names: Sequence[x509.GeneralName]) -> None:
    root = ec.generate_private_key(CURVE)
    _write(server / "ca.crt", _root(root))
    _serving(root, server, names, SERVER_DAYS)
    _write(folder / "ca.key", root.private_bytes(PEM, PKCS8, BARE))  # last: it says that all is there


def _root(root: ec.EllipticCurvePrivateKey) -> bytes:
    """The CA's own certificate."""
    return (
        _certificate(ISSUER, root.public_key(), DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(root.public_key()), critical=False)
        .add_extension(_usage(signs=True), critical=True)
        .sign(root, hashes.SHA384())
        .public_bytes(PEM)
    )


def _serving(
    root: ec.EllipticCurvePrivateKey, server: Path, names: Sequence[x509.GeneralName], days: int
) -> None:
    """A new key for the server, and a certificate for these names and addresses."""
    own = ec.generate_private_key(CURVE)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key())
    certificate = (
        _certificate(SUBJECT, own.public_key(), days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(authority, critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(root, hashes.SHA384())
    )
    _write(server / "server.key", own.private_bytes(PEM, PKCS8, BARE))
    _write(server / "server.crt", certificate.public_bytes(PEM))


def _certificate(subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ISSUER)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", host):
        raise BadInput(f"--host takes a name such as fl.example.org or an address, got '{host}'")
    return x509.DNSName(host)


def _private_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make {path}: {error.strerror}") from None


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(file, "wb") as opened:
        opened.write(data)
    part.replace(path)


# --- afterwards -----------------------------------------------------------------------------------------


def renew(folder: Path, hosts: Sequence[str] = (), days: int = SERVER_DAYS) -> bool:
    """A new certificate for the server, for the names it had or for these.

    The CA's is renewed with it if it would end before; whether it was, and devices need the new ca.crt.
    """
    check_count("days", days, most=DAYS)
    server, path = folder / "server", folder / "ca.key"
    try:
        root = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError):
        raise BadInput(f"cannot read {path}, which signs certificates; renew where it is kept") from None
    assert isinstance(root, ec.EllipticCurvePrivateKey)
    names = [_name(host) for host in dict.fromkeys([*hosts, *OWN_HOSTS])]
    if not hosts:
        old = certificate_at(server / "server.crt").extensions
        names = list(old.get_extension_for_class(x509.SubjectAlternativeName).value)
    late = certificate_at(server / "ca.crt").not_valid_after_utc < datetime.now(UTC) + timedelta(days=days)
    if late:
        data = _root(root)
        for place in (server, *sorted(folder.glob("node-*"))):
            _write(place / "ca.crt", data)
    _serving(root, server, names, days)
    return late


def revoke(folder: Path, client: int) -> None:
    """Lock a client out, from the next start of the server on."""
    server = folder / "server" if (folder / "server").is_dir() else folder
    public = server / "nodes" / f"node-{client}.pub"
    if not public.exists():
        raise BadInput(f"{public} is not there: no such client may join")
    public.unlink()
    shutil.rmtree(folder / f"node-{client}", ignore_errors=True)


def certificate_at(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        raise BadInput(f"{path} cannot be read as a certificate; make keys with: fedsaddle keys") from None


def certificates(server: Path) -> dict[Path, datetime]:
    """The server's certificates, and when each ends."""
    paths = server / "ca.crt", server / "server.crt"
    return {path: certificate_at(path).not_valid_after_utc for path in paths}


def ending(server: Path) -> list[str]:
    """What to say of certificates that end soon; one that has ended is refused."""
    now, found = datetime.now(UTC), []
    for path, end in certificates(server).items():
        how = f"fedsaddle keys renew {server.parent}"
        if end <= now:
            raise BadInput(f"{path} ended on {end:%Y-%m-%d}; where ca.key is kept: {how}")
        if end - now < timedelta(days=SOON):
            found.append(f"{path} ends on {end:%Y-%m-%d}, in {(end - now).days} days: {how}")
    return found


def held(folder: Path) -> list[str]:
    """What there is in a folder of keys, a line each."""
    server = folder / "server" if (folder / "server").is_dir() else folder
    lines, now = [], datetime.now(UTC)
    for path, end in certificates(server).items():
        lines.append(f"{path.name}  {'ends' if end > now else 'ended'} {end:%Y-%m-%d}")
    names = certificate_at(server / "server.crt").extensions
    hosts = names.get_extension_for_class(x509.SubjectAlternativeName).value
    lines.append("hosts  " + " ".join(str(host.value) for host in hosts))
    for client, key in sorted(node_keys(server).items()):
        lines.append(f"node-{client}  {hashlib.sha256(key).hexdigest()[:16]}")
    return lines


# --- reading --------------------------------------------------------------------------------------------


def node_keys(folder: Path) -> dict[int, bytes]:
    """The public keys that may join, by the number of their client, as Flower wants them."""
    found: dict[int, bytes] = {}
    for path in sorted((folder / "nodes").glob("node-*.pub")):
        match = re.fullmatch(r"node-(\d{1,6})\.pub", path.name)
        if not match:
            raise BadInput(f"{path}: expected a name such as node-0.pub, after the client's number")
        try:
            key = serialization.load_ssh_public_key(path.read_bytes())
        except ValueError:
            key = None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise BadInput(f"{path} is not an elliptic-curve public key; make keys with: fedsaddle keys")
        subject = serialization.PublicFormat.SubjectPublicKeyInfo
        data = key.public_bytes(PEM, subject)
        if data in found.values():
            raise BadInput(f"{path} is the key of another client too; each needs its own: fedsaddle keys")
        found[int(match[1])] = data
    return found


def server_files(folder: Path) -> tuple[Path, Path]:
    """The server's certificate and key, checked to be there."""
    files = folder / "server.crt", folder / "server.key"
    for path in (*files, folder / "ca.crt"):
        if not path.is_file():
            raise BadInput(f"{path} is missing; make keys with: fedsaddle keys KEYS, then give KEYS/server")
    _check_private(files[1])
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*files)
    except OSError as error:  # ssl.SSLError is one
        why = error.strerror if error.errno in (errno.EACCES, errno.EPERM) else "they do not belong together"
        how = f"fedsaddle keys renew {folder.parent}"
        raise BadInput(f"cannot use {files[0]} with {files[1]}: {why}; where ca.key is kept: {how}") from None
    return files


def _check_private(path: Path) -> None:
    if path.stat().st_mode & 0o007:
        raise BadInput(f"{path} is open to every user of this machine: chmod 600 {path}")


def node_key(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, Path]:
    """A node's private key, and the certificate it knows the server by."""
    try:
        key = serialization.load_ssh_private_key((folder / "key").read_bytes(), None)
    except OSError as error:
        raise BadInput(
            f"cannot read {folder / 'key'}: {error.strerror}; --key takes a folder such as KEYS/node-0"
        ) from None
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadInput(f"{folder / 'key'} is not a node's key; make keys with: fedsaddle keys")
    _check_private(folder / "key")
    if not (folder / "ca.crt").is_file():
        raise BadInput(f"{folder / 'ca.crt'} is missing: a node knows its server by it")
    return key, folder / "ca.crt"
