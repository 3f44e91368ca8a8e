"""Receives webhooks and prints each event once: `SECRET=whsec_… PORT=8530 python webhook_receiver.py`."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from agent_vault_client import SignatureInvalid, verify_webhook

SECRET, PORT = os.environ["SECRET"], int(os.environ.get("PORT", "8530"))
LARGEST = 1_000_000
seen: set[str] = set()  # A real receiver keeps the ids in its database, in the transaction that handles the event.


class Receiver(BaseHTTPRequestHandler):
    """Answers 200 to a valid request, and 400 to any other."""

    def do_POST(self) -> None:
        """Verify the body's bytes as received, then print a new event."""
        body = self.rfile.read(min(int(self.headers.get("Content-Length", "0")), LARGEST))
        try:
            event = verify_webhook(body, dict(self.headers), SECRET)
        except SignatureInvalid as error:
            return self._answer(400, str(error))
        if event["event_id"] not in seen:
            seen.add(event["event_id"])
            print(event["event"], event["event_id"], flush=True)
        return self._answer(200, "received")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", PORT), Receiver) as server:
        print(f"Receiving at http://127.0.0.1:{PORT}/", flush=True)
        server.serve_forever()
