"""Code shared by all routes: field types, parsing, operations, the OpenAPI document and metrics."""
