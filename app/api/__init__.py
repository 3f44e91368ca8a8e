"""What all routes share: field types, parsing, operations, the OpenAPI document and metrics."""
