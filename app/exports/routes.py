"""Routes of exports and of their files."""

from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from app.access.auth import READERS_AND_AGENT
from app.api.operation import Call, operation
from app.core.errors import NotFoundError, RequestError
from app.exports import service as exports
from app.exports.models import CreateExport, Export, ExportPage, ListExports
from app.submission.context import Service

_MEDIA_TYPES = {".csv": "text/csv; charset=utf-8", ".json": "application/json"}
_HEADERS = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}


@operation(
    "POST /v1/transactions/export", roles=READERS_AND_AGENT, errors=("wallet_not_found", "too_many_exports"), weight=100
)
async def export_transactions(call: Call, body: CreateExport) -> Export:
    """Export transactions.

    Writes the transactions of one wallet or of all wallets to a file, newest first. A time range is optional. An agent
    exports the transactions of its own wallet. Poll the export, or wait for the event `export.ready`.
    """
    return await exports.create(call.service, call.principal, call.claim, body)


@operation("GET /v1/transactions/exports/{export_id}", roles=READERS_AND_AGENT, errors=("export_not_found",))
async def get_export(call: Call) -> Export:
    """Get an export.

    The status is `processing`, then `ready` until `expires_at` and `expired` afterwards, or `failed` with a
    `failure_reason`. Anyone with the `download_url` can fetch the file for some minutes without an API key. The URL
    stops working earlier if the caller's API key expires or is revoked, or if the person is removed. Each response has
    a new URL. `agent-vault verify` checks the file against the chain.
    """
    return await exports.get(call.service, call.principal, call.path("export_id"))


@operation("GET /v1/transactions/exports", roles=READERS_AND_AGENT)
async def list_exports(call: Call, query: ListExports) -> ExportPage:
    """List exports, newest first.

    An agent sees the exports of its own wallet. Failed and expired exports stay in the list until 90 days after their
    creation.
    """
    return await exports.page(call.service, call.principal, query)


class _Download(FileResponse):
    """A file download. A range outside the file is refused in the error envelope, before any content is sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_or_refuse(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in {400, 416}:
                # For a malformed range, the response does not state the size.
                size = Headers(raw=message["headers"]).get("content-range")
                raise RequestError("range_not_satisfiable", headers={} if size is None else {"Content-Range": size})
            await send(message)

        # RFC 9110, section 14.2: a range in an unknown unit is ignored.
        unit, separator, _ = Headers(scope=scope).get("range", "").partition("=")
        if separator and unit.strip().lower() != "bytes":
            scope = {**scope, "headers": [(name, value) for name, value in scope["headers"] if name != b"range"]}
        await super().__call__(scope, receive, send_or_refuse)


async def _linked(request: Request) -> tuple[Path, str | None]:
    service: Service = request.app.state.service
    query = request.query_params
    return await exports.find_file(
        service, request.path_params["export_id"], *(query.get(one, "") for one in ("by", "expires", "signature"))
    )


async def manifest(request: Request) -> Response:
    """Download the manifest of an accounting file. The link alone grants access."""
    path, content = await _linked(request)
    if content is None:
        raise NotFoundError("export_not_found")
    headers = {**_HEADERS, "Content-Disposition": f'attachment; filename="transactions-{path.stem}.manifest.json"'}
    return Response(content, media_type=_MEDIA_TYPES[".json"], headers=headers)


async def download(request: Request) -> Response:
    """Download an export's file. The link alone grants access."""
    path, _ = await _linked(request)
    return _Download(path, media_type=_MEDIA_TYPES[path.suffix], filename=f"transactions-{path.name}", headers=_HEADERS)


_PATH = "/v1/transactions/exports/{export_id}"
#: Downloads are not operations of the API, because the link alone grants access to the file.
downloads = [Route(f"{_PATH}/{one.__name__}", one, methods=["GET"]) for one in (download, manifest)]
