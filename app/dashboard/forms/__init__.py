"""Forms of the dashboard: fields, review pages, notices and error messages."""
