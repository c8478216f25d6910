"""The app under load: fifty readers at once ask for stored pages; how long do they wait?"""

import asyncio
import statistics
import tempfile
import threading
import time
from pathlib import Path

import httpx
import uvicorn

from lexray.atlas.atlas import Atlas
from lexray.model.origin import Origin
from lexray.web.guard import Door
from lexray.web.library import Library
from lexray.web.server import make_app
from lexray.web.start import bind

READERS, ROUNDS = 50, 6
PAGES = (
    "/demo/map",
    "/demo/map/neurons.json?layer=3",
    "/demo/search?q=film",
    "/demo/token/500",
    "/demo/L3N17",
    "/demo/L2H1",
)


def serve(folder: Path) -> tuple[uvicorn.Server, Door]:
    """The app on an atlas of the model that comes along, in a thread."""
    Atlas.write("demo", folder)
    listening = bind("127.0.0.1", 0)
    door = Door(listening.getsockname()[1])
    app = make_app(Library.of([Origin(str(folder))]), door)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    return server, door


async def ask(base: str, token: str) -> tuple[list[float], int, list[float]]:
    """Times of all answers and how many were no page; then one reader's alone."""
    headers = {"authorization": f"Bearer {token}"}
    limits = httpx.Limits(max_connections=READERS)
    async with httpx.AsyncClient(base_url=base, headers=headers, limits=limits) as client:

        async def one(path: str) -> tuple[float, int]:
            start = time.perf_counter()
            answer = await client.get(path, timeout=120)
            return time.perf_counter() - start, answer.status_code

        for path in PAGES:  # read once, as stored pages are
            await one(path)
        await asyncio.sleep(2)
        alone = [(await one(path))[0] for path in PAGES for _ in range(5)]
        found = []
        for _ in range(ROUNDS):
            wanted = (one(PAGES[i % len(PAGES)]) for i in range(READERS))
            found += await asyncio.gather(*wanted)
    return [t for t, _ in found], sum(status != 200 for _, status in found), alone


def run() -> dict[str, float]:
    """`p95_ms`: of fifty at once; `alone_ms`: the median of one reader; `errors`."""
    with tempfile.TemporaryDirectory() as name:
        server, door = serve(Path(name))
        times, errors, alone = asyncio.run(ask(f"http://127.0.0.1:{door.port}", door.token))
        server.should_exit = True
    p95 = statistics.quantiles(times, n=20)[-1]
    return {
        "readers": READERS,
        "requests": len(times),
        "errors": errors,
        "p95_ms": 1000 * p95,
        "median_ms": 1000 * statistics.median(times),
        "alone_ms": 1000 * statistics.median(alone),
    }


if __name__ == "__main__":
    for figure, value in run().items():
        print(f"{figure:<24}{value:>12.4g}")
