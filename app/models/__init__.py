"""Bodies, queries and answers of the HTTP interface as pydantic models; they are also what `/openapi.json` shows."""
