"""The server of the studio: Python's own, on loopback, without state, so that several tabs and lost connections cost nothing.

Simulations run one at a time; those who wait are few, and who has gone is not served.
"""

from __future__ import annotations

import errno

from ..errors import InvalidInput
from .handler import Handler
from .requests import Opened
from .service import Service

PORT, TRIED_PORTS = 8314, 20


class Studio(Service):
    """The server, each of whose connections a `Handler` answers."""

    def __init__(self, host: str, port: int, opened: Opened):
        super().__init__(host, port, opened, Handler)


def open_studio(host: str, port: int | None, opened: Opened) -> Studio:
    """A server on this port; without one, on 8314 or the next that is free."""
    tried = [port] if port is not None else [*range(PORT, PORT + TRIED_PORTS), 0]
    for number in tried:
        try:
            return Studio(host, number, opened)
        except OverflowError as fault:
            raise InvalidInput(f"--port is {port}; allowed: 0 to 65535") from fault
        except OSError as fault:
            if port is not None or not _is_taken(fault):
                hint = "; another program has it: leave --port out for a free one" if _is_taken(fault) else ""
                raise InvalidInput(f"cannot serve on {host} port {number}: {fault.strerror}{hint}") from fault
    raise InvalidInput(f"no port of {host} is free")


def _is_taken(fault: OSError) -> bool:
    return fault.errno == errno.EADDRINUSE
