"""Requests and responses of exports."""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from app.api.fields import (
    Body,
    End,
    ExportId,
    IdempotencyKey,
    Identifier,
    ListResponse,
    Moment,
    Page,
    ReadFrom,
    ResponseBody,
    Time,
    WalletId,
)

ExportFormat = Literal["csv", "json"]
ExportStatus = Literal["processing", "ready", "expired", "failed"]


def _only_in_csv(bom: bool, info: ValidationInfo) -> bool:
    if bom and info.data.get("format") == "json":
        raise PydanticCustomError("bom", "must be false, because JSON has no byte order mark")
    return bom


class CreateExport(Body):
    """Body of a request for an export. `from` is inclusive, `to` is exclusive.

    With `bom`, a CSV file begins with a byte order mark, so that spreadsheets recognise UTF-8.
    """

    format: ExportFormat
    bom: Annotated[bool, AfterValidator(_only_in_csv)] = False
    wallet_id: Identifier | None = None
    from_: Annotated[Moment | None, Field(alias="from")] = None
    to: End | None = None
    idempotency_key: IdempotencyKey | None = None


class ListExports(Page):
    """Query of the list of exports."""


class Export(ResponseBody):
    """An export. `download_url` is null unless the export is ready. The link is valid for some minutes."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    export_id: ExportId
    id: Annotated[ExportId, ReadFrom("export_id")]
    status: ExportStatus
    format: ExportFormat
    bom: bool
    wallet_id: WalletId | None
    from_: Annotated[Time | None, Field(alias="from"), ReadFrom("start")]
    to: Annotated[Time | None, ReadFrom("end")]
    rows: int | None
    download_url: str | None
    estimated_ready_at: Time
    expires_at: Time | None
    failure_reason: Annotated[str | None, ReadFrom("reason")]
    created_at: Time


class ExportPage(ListResponse[Export]):
    """One page of exports, newest first."""
