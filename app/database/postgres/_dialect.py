"""SQLAlchemy's dialect for statements that libpq sends."""

from typing import Any

from sqlalchemy import ARRAY, BindParameter, bindparam
from sqlalchemy.dialects.postgresql.psycopg import PGCompiler_psycopg, PGDialect_psycopg
from sqlalchemy.sql.compiler import OPERATORS
from sqlalchemy.types import NullType


class _Compiler(PGCompiler_psycopg):
    def visit_in_op_binary(self, binary: Any, operator: Any, **options: Any) -> str:
        """Compare with one array, so that the SQL does not depend on the number of values."""
        if _is_list(binary.right):
            return self._compared(binary, "= ANY", options)
        text: str = self._generate_generic_binary(binary, OPERATORS[operator], **options)
        return text

    def visit_not_in_op_binary(self, binary: Any, operator: Any, **options: Any) -> str:
        """Compare as `visit_in_op_binary` does."""
        if _is_list(binary.right):
            return self._compared(binary, "<> ALL", options)
        text: str = super().visit_not_in_op_binary(binary, operator, **options)  # type: ignore[no-untyped-call]
        return text

    def _compared(self, binary: Any, comparison: str, options: dict[str, Any]) -> str:
        values = binary.right
        array = bindparam(values.key, values.value, type_=ARRAY(values.type, dimensions=1), required=values.required)
        return f"{self.process(binary.left, **options)} {comparison} ({self.process(array, **options)})"

    def bindparam_string(self, name: str, *arguments: Any, **options: Any) -> str:
        """Cast every value of a known type: libpq sends texts, and a text's place in the SQL need not show its type."""
        text, bindparam_type = super().bindparam_string(name, *arguments, **options), options.get("bindparam_type")
        if bindparam_type is None or isinstance(bindparam_type, NullType):
            return text
        kind = bindparam_type._unwrapped_dialect_impl(self.dialect)  # noqa: SLF001 - as SQLAlchemy itself does
        return text if kind.render_bind_cast else str(self.render_bind_cast(bindparam_type, kind, text))  # type: ignore[no-untyped-call]


def _is_list(operand: Any) -> bool:
    return isinstance(operand, BindParameter) and operand.expanding


class SenderDialect(PGDialect_psycopg):
    """Numbers values as `$1`, and sends a list as one array."""

    statement_compiler = _Compiler
    supports_statement_cache = True

    def __init__(self) -> None:
        super().__init__(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
