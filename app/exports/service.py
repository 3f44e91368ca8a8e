"""Creates exports, shows their status and finds their files."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from app.access.credentials import in_force
from app.access.keyring import Principal
from app.core.actors import Actor
from app.core.errors import AuthenticationError, BusinessError, NotFoundError
from app.core.identifiers import random_id
from app.core.timestamps import now_ms
from app.exports.exporter import Exporter
from app.exports.links import DownloadLinks
from app.exports.models import CreateExport, Export, ExportPage, ListExports
from app.store.audit import append
from app.store.exports import (
    ExportRecord,
    count_rows,
    export,
    export_created_under,
    export_page,
    insert_export,
    live,
)
from app.submission.admission import Admission
from app.submission.claim import Claim
from app.submission.context import Service
from app.wallets import service as wallets

_PREFIX = "exp_"
MAX_PROCESSING, MAX_LIVE = 20, 100
"""Maximum number of an organisation's unfinished exports, and of its unfinished and unexpired exports together.

A key or person may have a quarter of each, and of `MAX_ROWS`."""
MAX_ROWS = 10_000_000
"""Maximum number of transactions in an organisation's unexpired files, about 10 GB."""
MAX_ROWS_OF_AGENT = 10_000
"""Maximum number of transactions in the unexpired files of an agent's key. It bounds the disk that the key can fill."""
_START_MS, _MS_PER_ROW = 1_000, 0.1
"""Estimated duration of an export in milliseconds: a fixed part, and a part per row."""

_admission = Admission("export", MAX_PROCESSING, "Too many export requests of the organisation are waiting. Retry.")


async def create(service: Service, principal: Principal, claim: Claim, body: CreateExport) -> Export:
    """Create an export. Its file is written in the background.

    Raises ``wallet_not_found`` and ``too_many_exports``, and ``rate_limited`` while too many requests wait.
    """
    org = principal.org
    earlier = await claim.earlier(lambda conn, under: export_created_under(conn, org, under))
    if earlier is not None:
        return _answer(service, principal, earlier)
    wallet_id = body.wallet_id or principal.wallet_id
    if wallet_id is not None:
        await wallets.require(service, org, wallet_id)
    now = now_ms()
    asked = ExportRecord(
        export_id=random_id(_PREFIX),
        org=org,
        wallet_id=wallet_id,
        format=body.format,
        bom=body.bom,
        start=body.from_,
        end=body.to,
        status="processing",
        created_at=now,
        estimated_at=now,
        created_under=claim.key,
        requested_by=principal.actor,
    )
    async with _admission.enter(service, principal):
        # Check the limits after admission, so that earlier requests are already stored, and before counting the rows,
        # which can take long.
        await service.db.read(lambda conn: _check_room(conn, principal))
        rows = await service.db.read(lambda conn: count_rows(conn, asked), in_thread=True)
        made = replace(asked, rows=rows, estimated_at=now + _START_MS + int(rows * _MS_PER_ROW))

        def store(conn: Connection) -> None:
            _check_room(conn, principal, rows)
            insert_export(conn, made)
            append(conn, principal.entry("export.create", made.export_id, wallet_id=wallet_id, format=body.format))

        await claim.store(store)
    service.part(Exporter).wake()
    return _answer(service, principal, made)


async def get(service: Service, principal: Principal, export_id: str) -> Export:
    """Return an export. Raises ``export_not_found``, also for an export of another organisation.

    Agents see only the exports of their own wallet.
    """
    found = await service.db.read(lambda conn: export(conn, export_id))
    if found is None or found.org != principal.org or principal.wallet_id not in {None, found.wallet_id}:
        raise NotFoundError("export_not_found")
    return _answer(service, principal, found)


async def page(service: Service, principal: Principal, query: ListExports) -> ExportPage:
    """Return one page of exports, newest first. An agent gets the exports of its own wallet."""
    found = await service.db.read(
        lambda conn: export_page(conn, principal.org, principal.wallet_id, limit=query.limit, cursor=query.cursor)
    )
    return ExportPage.showing(found, lambda one: _answer(service, principal, one))


async def find_file(service: Service, export_id: str, by: str, expires: str, signature: str) -> tuple[Path, str | None]:
    """Return the path of the file that a download link names, and the file's manifest if it has one.

    Raises ``download_link_invalid`` if the link is forged or expired, or its key or person has ended. Raises
    ``export_not_found`` if the file was deleted.
    """
    if not service.part(DownloadLinks).is_valid(export_id, by, expires, signature):
        raise AuthenticationError("download_link_invalid")
    author = Actor.parse(by)
    found, counts = await service.db.read(lambda conn: (export(conn, export_id), in_force(conn, author, now_ms())))
    if not counts:
        raise AuthenticationError("download_link_invalid")
    if found is None or (path := await service.part(Exporter).fetch(found)) is None:
        raise NotFoundError("export_not_found")
    return path, found.manifest


def _check_room(connection: Connection, principal: Principal, rows: int = 0) -> None:
    """Raise ``too_many_exports`` if another export with ``rows`` rows would exceed a limit.

    Each limit applies to the organisation. The caller alone may use a quarter of it, and an agent's key fewer rows.
    """
    own = MAX_ROWS_OF_AGENT if principal.role == "agent" else MAX_ROWS // 4
    for who, by, part, most in (("API key or person", principal.actor, 4, own), ("organisation", None, 1, MAX_ROWS)):
        if rows > most:
            message = f"The export has {rows:,} transactions, but the {who} may have {most:,} in unexpired exports."
            raise BusinessError("too_many_exports", f"{message} Export shorter periods.")
        taken = live(connection, principal.org, by)
        if taken.processing >= MAX_PROCESSING // part:
            raise BusinessError("too_many_exports", f"The {who} has reached its limit of unfinished exports.")
        if taken.processing + taken.ready >= MAX_LIVE // part or taken.rows + rows > most:
            message = f"The {who} has reached its limit of unexpired exports, or of transactions in them."
            headers = {}
            if taken.first_end is not None:
                headers["Retry-After"] = str(max(1, math.ceil((taken.first_end - now_ms()) / 1000)))
            raise BusinessError("too_many_exports", f"{message} Retry after the oldest expires.", headers=headers)


def _answer(service: Service, by: Principal, found: ExportRecord) -> Export:
    now = now_ms()
    status = "expired" if found.status == "ready" and (found.expires_at or 0) <= now else found.status
    url = manifest_url = None
    if status == "ready" and found.expires_at is not None:
        link = partial(service.part(DownloadLinks).make, found.export_id, by.actor, until=found.expires_at // 1000)
        url, manifest_url = link(), None if found.manifest is None else link(name="manifest")
    return Export.of(
        found,
        status=status,
        rows=None if status == "processing" else found.rows,
        download_url=url,
        manifest_url=manifest_url,
        estimated_ready_at=found.finished_at or max(found.estimated_at, now),
    )
