"""A server for the page, on the local host and for reading only."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from docom.watch.page import policy, render
from docom.watch.sources import Source
from docom.watch.view import look

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")  # in the address that a browser shows
PORT = 8517
OFTEN = 1.0  # seconds between two looks at the files
KEEP = 15.0  # seconds after which a silent stream gets a comment, so that a closed one is noticed
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
MISSING = "the page needs starlette and uvicorn: pip install 'docom[sites]'"


def listen(port: int = PORT) -> socket.socket:
    """A socket on the local host; port 0 takes a free one.

    Raises:
        OSError: another program has the port.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen()  # who opens the page at once waits until the server has started
    except OSError as error:
        found.close()
        raise OSError(
            f"port {port} of this machine cannot be used ({error.strerror}): another program has it, perhaps another "
            "`docom site watch`; end that, or choose another one with --port, 0 for any free one"
        ) from None
    return found


def serve(
    sources: Callable[[], Sequence[Source]], at: socket.socket, ready: Callable[[str], None] = lambda url: None
) -> None:
    """Serve the page until Ctrl-C. sources: says at every look which sites there are. ready: is told the address."""
    try:
        import uvicorn
    except ImportError as error:
        raise ValueError(f"{MISSING} ({error})") from None
    port = at.getsockname()[1]
    ending = asyncio.Event()
    app = application(sources, port, ending)

    class Server(uvicorn.Server):
        """Ends the streams, which would otherwise go on, before it waits for them."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            """See `uvicorn.Server.handle_exit`."""
            ending.set()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=2)
    ready(f"http://{HOST}:{port}/")
    try:
        Server(config).run(sockets=[at])
    except KeyboardInterrupt:
        pass
    finally:
        at.close()


def application(sources: Callable[[], Sequence[Source]], port: int, ending: asyncio.Event | None = None) -> Starlette:
    """The page at ``/``, its state as JSON at ``/state`` and as server-sent events at ``/events``."""
    try:
        from starlette.applications import Starlette
        from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
        from starlette.routing import Route
    except ImportError as error:
        raise ValueError(f"{MISSING} ({error})") from None

    async def seen() -> dict[str, Any]:
        return await asyncio.to_thread(lambda: look(sources()))

    async def page(request: Request) -> Response:
        html = render(await seen(), live=True)
        return HTMLResponse(html, headers={"Content-Security-Policy": policy(live=True)})

    async def state(request: Request) -> Response:
        return JSONResponse(await seen())

    async def stream(request: Request) -> Response:
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(_changes(seen, ending), media_type="text/event-stream", headers=headers)

    app = Starlette(routes=[Route("/", page), Route("/state", state), Route("/events", stream)])
    app.add_middleware(_Guard, allowed=frozenset(f"{name}:{port}" for name in NAMES))
    return app


async def _changes(seen: Callable[[], Any], ending: asyncio.Event | None) -> AsyncIterator[str]:
    """The state whenever it is another one, as server-sent events."""
    before, silent = None, 0.0
    while ending is None or not ending.is_set():
        found = await seen()
        without_time = {key: value for key, value in found.items() if key != "time"}
        if without_time != before:
            before, silent = without_time, 0.0
            yield f"data: {json.dumps(found)}\n\n"
        elif silent >= KEEP:
            silent = 0.0
            yield ": nothing new\n\n"
        silent += OFTEN
        if ending is None:
            await asyncio.sleep(OFTEN)
            continue
        try:
            await asyncio.wait_for(ending.wait(), OFTEN)
        except TimeoutError:
            continue


class _Guard:
    """Lets through only reading, and only from pages and programs that address the local host by name.

    A page of another origin can make a browser send requests here, and a name that resolves to 127.0.0.1 can make the browser
    take the answer for its own: both show in the headers Host and Origin.
    """

    def __init__(self, app: Any, allowed: frozenset[str]) -> None:
        self.app, self.allowed = app, allowed

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.datastructures import Headers, MutableHeaders
        from starlette.responses import PlainTextResponse

        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        refused = None
        if headers.get("host", "").lower() not in self.allowed:
            refused = PlainTextResponse("this page is for the local host only\n", 421)
        elif origin is not None and origin.lower().removeprefix("http://") not in self.allowed:
            refused = PlainTextResponse("this page is not for other pages\n", 403)
        elif scope["method"] not in ("GET", "HEAD"):
            refused = PlainTextResponse("this page can only be read\n", 405, headers={"Allow": "GET, HEAD"})

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    found[name] = value
            await send(message)

        await (refused or self.app)(scope, receive, guarded)
