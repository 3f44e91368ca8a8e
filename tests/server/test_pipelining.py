"""Clients that send many requests on one connection and read no answer, or ask for another protocol."""

import asyncio
import socket
import struct
from pathlib import Path

from tests.support.processes import WITH_LOG, serving

_PIPELINED = 200


async def test_clients_that_leave_answers_unread_cause_no_traceback(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with serving(tmp_path / "data", WITH_LOG, str(log)) as running:
        assert running.client.base_url.port is not None
        address = (running.client.base_url.host, running.client.base_url.port)
        request = f"GET /docs/reference HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n\r\n".encode()
        loop = asyncio.get_running_loop()
        for lingers in (False, True):
            with socket.create_connection(address) as client:
                client.setblocking(False)
                await loop.sock_sendall(client, request * _PIPELINED)
                # The server has begun to answer, and waits for the client to read.
                await loop.sock_recv(client, 1)
                await asyncio.sleep(0.5)
                if lingers:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Answered after the server has noticed both ends.
        assert (await running.client.get("/v1/wallets")).status_code == 200
        running.process.terminate()
        await running.process.wait()

    # At its level, the log has only warnings and errors.
    assert log.read_text() == ""


async def test_request_to_upgrade_is_answered_and_logs_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with serving(tmp_path / "data", WITH_LOG, str(log)) as running:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
        assert (await running.client.get("/v1/wallets", headers=upgrade)).status_code == 200
        running.process.terminate()
        await running.process.wait()

    assert log.read_text() == ""
