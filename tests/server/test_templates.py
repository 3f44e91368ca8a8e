"""The dashboard's templates, which are compiled before the service listens."""

from pathlib import Path

import pytest

from app.core.settings import Settings
from app.server.serve import serve
from tests.support.processes import free_ports


async def test_service_with_a_broken_template_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("broken template")

    monkeypatch.setattr("app.server.serve.load_templates", fail)
    port, localnet_port = free_ports()
    said: list[str] = []

    with pytest.raises(ValueError, match="broken template"):
        await serve(Settings(data_dir=tmp_path, port=port, localnet_port=localnet_port), said.append)

    assert said == []
