"""Requests and responses of exports."""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from app.api.fields import (
    ChangeBody,
    End,
    ExportId,
    ListResponse,
    Moment,
    Page,
    ReadFrom,
    ResponseBody,
    Time,
    WalletId,
    WalletRef,
    example,
)

ExportFormat = Literal["csv", "json", "accounting"]
ExportStatus = Literal["processing", "ready", "expired", "failed"]


def _only_in_csv(bom: bool, info: ValidationInfo) -> bool:
    if bom and info.data.get("format") == "json":
        raise PydanticCustomError("bom", "must be false, because JSON has no byte order mark")
    return bom


class CreateExport(ChangeBody):
    """Body of a request for an export. `from` is inclusive, `to` is exclusive.

    With `bom`, a CSV file begins with a byte order mark, so that spreadsheets recognise UTF-8.
    """

    format: ExportFormat
    """The format of the file: `csv`, `json`, or `accounting`, a CSV file with debits and credits for bookkeeping."""
    bom: Annotated[bool, AfterValidator(_only_in_csv)] = False
    """True to begin a CSV file with a byte order mark, for spreadsheets."""
    wallet_id: WalletRef | None = None
    """The wallet to export; all wallets by default."""
    from_: Annotated[Moment | None, Field(alias="from")] = None
    """The start of the period, inclusive."""
    to: End | None = None
    """The end of the period, exclusive. It must be later than `from`."""


class ListExports(Page):
    """Query of the list of exports."""


class Export(ResponseBody):
    """An export. `download_url` is null unless the export is ready. The link is valid for some minutes."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    export_id: ExportId
    """The export's id. It begins with `exp_`."""
    id: Annotated[ExportId, ReadFrom("export_id")]
    """The export's id, equal to `export_id`."""
    status: ExportStatus
    """The status of the export. `/docs/reference` explains each status."""
    format: ExportFormat
    """The format as requested."""
    bom: bool
    """True if the file begins with a byte order mark."""
    wallet_id: WalletId | None
    """The wallet as requested. Null if the export covers all wallets."""
    from_: Annotated[Time | None, Field(alias="from"), ReadFrom("start")]
    """The start of the period as requested."""
    to: Annotated[Time | None, ReadFrom("end")]
    """The end of the period as requested."""
    rows: Annotated[int | None, example(1024)]
    """The number of rows. Null until the export is ready."""
    download_url: Annotated[
        str | None,
        example("http://127.0.0.1:8402/v1/transactions/exports/exp_5T1wWcHn8sYqL6bVfRk9Jd/download?expires=1777593600"),
    ]
    """The link to the file. Null unless the export is ready."""
    manifest_url: Annotated[
        str | None,
        example("http://127.0.0.1:8402/v1/transactions/exports/exp_5T1wWcHn8sYqL6bVfRk9Jd/manifest?expires=1777593600"),
    ]
    """The link to the manifest of an accounting file. `agent-vault verify` needs it. Null for other files, and unless
    the export is ready.
    """
    estimated_ready_at: Time
    """The estimated time when the file will be ready. Once the export is ready or failed, the time when this happened.
    """
    expires_at: Time | None
    """The time until which the file is kept."""
    failure_reason: Annotated[str | None, ReadFrom("reason"), example("The file could not be written.")]
    """The reason why the export failed. Null if it has not failed."""
    created_at: Time
    """The time of the request."""


class ExportPage(ListResponse[Export]):
    """One page of exports, newest first."""
