"""The field type for a host of paid resources."""

from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.core.hosts import HOST_PATTERN, MAX_HOST, fault_of_host


def _host(value: str) -> str:
    if (fault := fault_of_host(value)) is not None:
        raise PydanticCustomError("host", "{fault}", {"fault": fault})
    return value


#: A host of resources, or `*` for any.
Host = Annotated[
    str,
    AfterValidator(_host),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": MAX_HOST,
            "anyOf": [{"pattern": HOST_PATTERN}, {"format": "ipv6"}],
            "examples": ["api.example.com"],
        }
    ),
]
