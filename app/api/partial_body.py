"""A body whose absent fields mean something else than their defaults."""

from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from app.api.fields import Body


class PartialBody(Body):
    """``model_fields_set`` tells which fields are in the body, so that `null` differs from absence."""

    @model_serializer(mode="wrap")
    def _as_sent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Under one idempotency key, bodies are equal if they set the same fields, not if their defaults agree.
        return {name: value for name, value in serialize(self).items() if name in self.model_fields_set}
