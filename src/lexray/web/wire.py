"""HTTP as the app speaks it: uvicorn's own, but for those who connect and then say nothing."""

from __future__ import annotations

from asyncio import Transport
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 20.0
"""In so many a request has to be there, once there is a connection."""


class PatientProtocol(H11Protocol):
    """Ends connections on which no whole head of a request has come: each is a place that
    somebody else could have had. (Between two requests uvicorn has a bound of its own.)"""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(SECONDS, self._end_if_silent)

    def _end_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            cast(Transport, self.transport).close()
