"""Exports of transactions, and the files that they become."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import anyio
from starlette.requests import Request
from starlette.responses import FileResponse, MalformedRangeHeader, RangeNotSatisfiable, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.access.auth import READERS_AND_AGENT
from app.api.operation import Call, operation
from app.exports import requests
from app.exports.models import CreateExport, Export
from app.submission.context import Service

_MEDIA_TYPES = {".csv": "text/csv; charset=utf-8", ".json": "application/json"}


@operation(
    tag="transactions",
    roles=READERS_AND_AGENT,
    body=CreateExport,
    answer=Export,
    errors=("wallet_not_found", "too_many_exports"),
    changes=True,
)
async def export_transactions(call: Call, body: CreateExport) -> Export:
    """Export transactions.

    Has them written into a file, newest first: those of a wallet, or of all wallets, of any time or of a range. An
    agent's are its wallet's. Poll the export, or wait for the event `export.ready`.
    """
    return await requests.create(call.service, call.principal, call.claim, body)


@operation(tag="transactions", roles=READERS_AND_AGENT, answer=Export, errors=("export_not_found",))
async def get_export(call: Call) -> Export:
    """Get an export.

    It is `processing`, then `ready` until `expires_at` and `expired` from then on, or `failed` for the reason that it
    gives. Whoever has the `download_url` can fetch the file without an API key, for some minutes; each answer has a
    new one. `agent-vault verify` checks the file against the chain.
    """
    return await requests.get(call.service, call.principal, call.path("export_id"))


class _Download(FileResponse):
    """An open file, which may be removed meanwhile. Of a range that makes no sense, or that it does not have, all."""

    def __init__(self, file: BinaryIO) -> None:
        path = Path(file.name)
        super().__init__(
            path,
            media_type=_MEDIA_TYPES[path.suffix],
            filename=f"transactions-{path.name}",
            headers={"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"},
            stat_result=os.fstat(file.fileno()),
        )
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)

    @asynccontextmanager
    async def _open_file(self) -> AsyncIterator[anyio.AsyncFile[bytes]]:
        yield anyio.wrap_file(self._file)

    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        try:
            return super()._parse_range_header(http_range, file_size)
        except (MalformedRangeHeader, RangeNotSatisfiable):
            return []


async def download(request: Request) -> Response:
    """Answer the file of an export; the link is the permission."""
    service: Service = request.app.state.service
    query = request.query_params
    return _Download(
        await requests.open_file(
            service, request.path_params["export_id"], query.get("expires", ""), query.get("signature", "")
        )
    )


routes = [
    Route("/v1/transactions/export", export_transactions, methods=["POST"]),
    Route("/v1/transactions/exports/{export_id}", get_export, methods=["GET"]),
]
#: No operation of the interface: where it is and who may fetch it stands in the link.
downloads = [Route("/v1/transactions/exports/{export_id}/download", download, methods=["GET"])]
