"""solana-py on the embedded chain of the same process."""

from collections.abc import Awaitable, Callable

from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Commitment
from solana.rpc.providers.async_http import AsyncHTTPProvider
from solders.rpc.requests import Body, batch_to_json

Answer = Callable[[bytes], Awaitable[str]]


class InProcessProvider(AsyncHTTPProvider):
    """Hands requests to a function instead of an HTTP client, which takes several times as long as the answer."""

    def __init__(self, answer: Answer) -> None:
        """Send every request to `answer`."""
        super().__init__("http://localnet.invalid")
        self._answer = answer

    async def make_request_unparsed(self, body: Body) -> str:
        """Return the text of an answer."""
        return await self._answer(body.to_json().encode())

    async def make_batch_request_unparsed(self, reqs: tuple[Body, ...]) -> str:
        """Return the text of the answers to a batch."""
        return await self._answer(batch_to_json(reqs).encode())


def in_process_client(answer: Answer, commitment: Commitment | None) -> AsyncClient:
    """Return a client that sends every request to `answer`."""
    client = AsyncClient("http://localnet.invalid", commitment)
    client._provider = InProcessProvider(answer)  # noqa: SLF001 - solana-py offers no other way to set it
    return client
