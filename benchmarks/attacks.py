"""What strangers and single devices can do to a deployment: `python -m benchmarks.attacks`, some minutes.

A server with 256 file descriptors and four light nodes (benchmarks/scale.py), whose rounds go on while it is
attacked. Of each attack: how it ended, rounds completed meanwhile, and what it cost the SuperLink. Adds to
docs/results/deployment.json.
"""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.deployment import RESULT, children
from benchmarks.scale import Scaled, cpu

FILES = 256


def tls(one: Scaled) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(one.folder / "keys" / "node-0" / "ca.crt"))


@contextlib.contextmanager
def secure(one: Scaled) -> Iterator[ssl.SSLSocket]:
    host, port = one.place.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        tls(one).wrap_socket(plain, server_hostname=host) as wrapped,
    ):
        yield wrapped


def endless(one: Scaled, start: bytes, more: bytes, most: int) -> str:
    """Send without end, over and over, until so much was sent or a minute has passed."""
    sent, connections, end = 0, 0, time.monotonic() + 60
    while sent < most and time.monotonic() < end:
        connections += 1
        with contextlib.suppress(OSError), secure(one) as line:
            line.sendall(start)
            while sent < most:
                line.sendall(more)
                sent += len(more)
    return f"{sent / 1e6:.1f} MB taken in by {connections} connections, each closed by the server"


def headers(one: Scaled) -> str:
    return endless(one, b"POST / HTTP/1.1\r\nhost: a\r\n", b"x: " + b"a" * 8000 + b"\r\n", 600_000_000)


def address(one: Scaled) -> str:
    return endless(one, b"POST /", b"a" * 8000, 100_000_000)


def half_sent(one: Scaled) -> str:
    with contextlib.ExitStack() as stack:
        lines = []
        for _ in range(200):
            with contextlib.suppress(OSError):
                lines.append(stack.enter_context(secure(one)))
                lines[-1].sendall(b"POST / HTTP/1.1\r\nhost: a\r\nx: ")
        time.sleep(30)
        return f"{sum(map(is_open, lines))} of 200 open after 30 s"


def silent(one: Scaled) -> str:
    host, port = one.place.split(":")
    lines = [socket.create_connection((host, int(port))) for _ in range(260)]
    time.sleep(30)
    still = sum(map(is_open, lines))
    for line in lines:
        line.close()
    return f"{still} of 260 open after 30 s"


def is_open(line: socket.socket) -> bool:
    line.settimeout(0.01)
    try:
        return line.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def device(one: Scaled, path: str, size: int, times: int) -> str:
    """As the registered device 1."""
    from fedsaddle.flower import keys
    from fedsaddle.flower.signing import Signature

    content, (key, _) = b"0" * size, keys.node_key(one.folder / "keys" / "node-1")
    with httpx.Client(verify=tls(one), base_url=f"https://{one.place}", timeout=60) as client:
        found = {
            client.post(path, content=content, headers=Signature(key).headers(path, content)).status_code
            for _ in range(times)
        }
    return f"{times} times: {', '.join(map(str, sorted(found)))}"


ATTACKS: dict[str, Callable[[Scaled], str]] = {
    "600 MB of header lines, no key": headers,
    "100 MB of URL, no key": address,
    "200 half-sent requests, no key": half_sent,
    "260 silent connections, 256 descriptors": silent,
    "a device's envelope of 680 kB": lambda one: device(one, "/v1/fleet/push-messages", 680_000, 10),
    "a device's answers that nobody asked for, 680 kB": lambda one: device(
        one, "/v1/post/answer/" + "0" * 32, 680_000, 100
    ),
}


def memory(pid: int) -> float:
    """MB in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def main() -> None:
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        one = Scaled(Path(folder), 4, 4, 1_000_000)
        resource.prlimit(one.serve.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        try:
            one.wait_for(lambda: len(one.phases()) >= 5, 400)
            (hub, _), log = children(one.serve.pid), one.run / "deployment" / "superlink.log"
            for name, attack in ATTACKS.items():
                before, done, began = (memory(hub), cpu(hub)), len(one.phases()), time.monotonic()
                outcome = attack(one)
                lines = one.phases()[done:]
                found.append(
                    {
                        "attack": name,
                        "outcome": outcome,
                        "seconds": time.monotonic() - began,
                        "rounds": sum(line["verdict"] == "go" for line in lines),
                        "abandoned": sum(line["verdict"] != "go" for line in lines),
                        "mb_before": before[0],
                        "mb_after": memory(hub),
                        "superlink_cpu": cpu(hub) - before[1],
                        "log_bytes": log.stat().st_size,
                    }
                )
                print(json.dumps(found[-1]), flush=True)
        finally:
            one.end()
    old = json.loads(RESULT.read_text())
    RESULT.write_text(json.dumps(old | {"attacks": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
