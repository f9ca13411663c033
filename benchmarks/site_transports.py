"""What encrypted transports cost on one machine: ZeroMQ with CURVE and in plain, gRPC with mutual TLS, TLS over a plain socket.

``python -m benchmarks.site_transports`` (Linux, openssl, grpcio; a minute). Two processes on the loopback; one sends messages of
one size, the other answers the last of them. Printed: megabytes per second, CPU seconds of both processes per gigabyte, and the
time of a message of 100 bytes there and back, the median of some. The best of three repetitions; what is measured alternates, so
that another load of the machine meets all of them.
"""

from __future__ import annotations

import multiprocessing
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZE, COUNT = 2**16, 4096  # bytes of a message: a piece between sites; 268 MB in all
SMALL, PINGS = 100, 300
REPEATED = 3
PORT = 18700
LIMITS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def certificates(folder: Path) -> None:
    """An authority and a certificate for each of two ends."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for end in ("server", "client"):
        openssl("req", *curve, "-keyout", f"{end}.key", "-out", f"{end}.csr", "-subj", f"/CN={end}")
        openssl("x509", "-req", "-in", f"{end}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-out", f"{end}.pem", "-extfile", "names")  # fmt: skip


# ZeroMQ


def zmq_ends(curve: bool, keys: tuple[Any, Any], server: bool, port: int) -> Any:
    """A socket as sites use it: a router that listens, a dealer that opens the connection."""
    import zmq

    socket = zmq.Context().socket(zmq.ROUTER if server else zmq.DEALER)
    socket.set_hwm(80)
    (server_public, server_secret), (client_public, client_secret) = keys
    if curve and server:
        socket.curve_server, socket.curve_publickey, socket.curve_secretkey = True, server_public, server_secret
    elif curve:
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = (
            server_public,
            client_public,
            client_secret,
        )
    (socket.bind if server else socket.connect)(f"tcp://127.0.0.1:{port}")
    return socket


def zmq_server(curve: bool, keys: Any, port: int) -> None:
    """Answer what ends with a mark."""
    socket = zmq_ends(curve, keys, True, port)
    while True:
        who, data = socket.recv_multipart(copy=False)
        if data.buffer[-1] == 1:
            socket.send_multipart([who.bytes, b"ok"])
        elif data.buffer[-1] == 2:
            socket.send_multipart([who.bytes, repr(time.process_time()).encode()])


def zmq_client(curve: bool, keys: Any, port: int) -> Callable[[bytes, int], bytes]:
    """Sends a message some times, and returns the answer to the last."""
    socket = zmq_ends(curve, keys, False, port)

    def send(message: bytes, count: int) -> bytes:
        for _ in range(count - 1):
            socket.send(message)
        socket.send(message[:-1] + (b"\2" if message[:1] == b"t" else b"\1"))
        return socket.recv()

    return send


# gRPC


def grpc_server(folder: Path, port: int) -> None:
    """A stream of bytes, answered when it ends."""
    from concurrent import futures

    import grpc

    def take(messages: Any, context: Any) -> bytes:
        last = b""
        for message in messages:
            last = message
        return repr(time.process_time()).encode() if last[:1] == b"t" else b"ok"

    handler = grpc.method_handlers_generic_handler("sites", {"take": grpc.stream_unary_rpc_method_handler(take)})
    server = grpc.server(futures.ThreadPoolExecutor(2), options=LIMITS)
    server.add_generic_rpc_handlers((handler,))
    read = [(folder / name).read_bytes() for name in ("server.key", "server.pem", "ca.pem")]
    server.add_secure_port(f"127.0.0.1:{port}", grpc.ssl_server_credentials([(read[0], read[1])], read[2], True))
    server.start()
    server.wait_for_termination()


def grpc_client(folder: Path, port: int) -> Callable[[bytes, int], bytes]:
    """See `zmq_client`."""
    import grpc

    read = [(folder / name).read_bytes() for name in ("ca.pem", "client.key", "client.pem")]
    channel = grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(*read), options=LIMITS)
    take = channel.stream_unary("/sites/take")
    return lambda message, count: take(iter([message] * count), wait_for_ready=True)


# TLS over a socket


def tls_server(folder: Path, port: int) -> None:
    """Messages with their length before them."""
    import socket

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    listening = socket.create_server(("127.0.0.1", port))
    connection = context.wrap_socket(listening.accept()[0], server_side=True)
    file = connection.makefile("rb", buffering=2**20)
    while header := file.read(4):
        data = file.read(struct.unpack("<I", header)[0])
        if data[-1] == 1:
            connection.sendall(b"ok".ljust(32))
        elif data[-1] == 2:
            connection.sendall(repr(time.process_time()).encode().ljust(32)[:32])


def tls_client(folder: Path, port: int) -> Callable[[bytes, int], bytes]:
    """See `zmq_client`."""
    import socket

    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "client.pem", folder / "client.key")
    connection = context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(message: bytes, count: int) -> bytes:
        framed = struct.pack("<I", len(message)) + message
        for _ in range(count - 1):
            connection.sendall(framed)
        connection.sendall(framed[:-1] + (b"\2" if message[:1] == b"t" else b"\1"))
        answer = b""
        while len(answer) < 32:
            answer += connection.recv(32)
        return answer.strip()

    return send


def measure(send: Callable[[bytes, int], bytes]) -> tuple[float, float, float]:
    """Bytes per second, CPU seconds of both ends per byte, seconds there and back."""
    send(b"x" * SIZE + b"\0", 8)
    theirs, mine = float(send(b"t" + bytes(SMALL), 1)), time.process_time()
    began = time.perf_counter()
    send(b"x" * (SIZE - 1) + b"\0", COUNT)
    seconds = time.perf_counter() - began
    cpu = time.process_time() - mine + float(send(b"t" + bytes(SMALL), 1)) - theirs
    times = []
    for _ in range(PINGS):
        began = time.perf_counter()
        send(b"x" * SMALL + b"\0", 1)
        times.append(time.perf_counter() - began)
    return SIZE * COUNT / seconds, cpu / (SIZE * COUNT), statistics.median(times)


def main() -> None:
    """Measure and print a table."""
    import zmq

    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates(folder)
        keys = zmq.curve_keypair(), zmq.curve_keypair()
        cases: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
            "ZeroMQ with CURVE": (zmq_server, (True, keys), zmq_client),
            "ZeroMQ, not encrypted": (zmq_server, (False, keys), zmq_client),
            "gRPC with mutual TLS": (grpc_server, (folder,), grpc_client),
            "TLS over a socket": (tls_server, (folder,), tls_client),
        }
        found: dict[str, list[tuple[float, float, float]]] = {title: [] for title in cases}
        port = PORT
        for _ in range(REPEATED):
            for title, (server, arguments, client) in cases.items():
                port += 1
                process = context.Process(target=server, args=(*arguments, port), daemon=True)
                process.start()
                time.sleep(3)
                try:
                    found[title].append(measure(client(*arguments, port)))
                finally:
                    process.terminate()
                    process.join()
        print(f"Python {sys.version.split()[0]}, libzmq {zmq.zmq_version()}, {ssl.OPENSSL_VERSION}\n")
        print("| | MB/s | CPU seconds per GB, both ends | 100 bytes there and back |\n|---|---:|---:|---:|")
        for title, runs in found.items():
            rate, cpu, back = max(run[0] for run in runs), min(run[1] for run in runs), min(run[2] for run in runs)
            print(f"| {title} | {rate / 1e6:.0f} | {1e9 * cpu:.1f} | {1e6 * back:.0f} us |")


if __name__ == "__main__":
    main()
