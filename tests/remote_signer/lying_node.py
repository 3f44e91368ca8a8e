"""A node that tells the truth about the nonce only."""

import base64
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from tests.remote_signer.every_instruction import BLOCKHASH, CODEC, NONCE


class LyingNode:
    """Answers `accounts`, data in base64 by address, as accounts of the program; serves as a context."""

    def __init__(self, authority: Pubkey) -> None:
        self.accounts: Mapping[str, str] = {}
        self._nonce = base64.b64encode((1).to_bytes(4, "little") * 2 + bytes(authority) + bytes(BLOCKHASH) + bytes(8))
        node = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": node.answer(asked)}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, asked: Any) -> Any:
        """Return the result of a call."""
        named = asked["params"][0]
        found = [self._account(one) for one in (named if isinstance(named, list) else [named])]
        return {"context": {"slot": 1}, "value": found if isinstance(named, list) else found[0]}

    def _account(self, address: str) -> dict[str, Any] | None:
        if address == str(NONCE):
            return _shown(self._nonce.decode(), SYSTEM_PROGRAM)
        data = self.accounts.get(address)
        return None if data is None else _shown(data, CODEC.program_id)


def _shown(data: str, owner: Pubkey) -> dict[str, Any]:
    return {
        "data": [data, "base64"],
        "executable": False,
        "lamports": 1_447_680,
        "owner": str(owner),
        "rentEpoch": 0,
        "space": len(base64.b64decode(data)),
    }
