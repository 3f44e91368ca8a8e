"""The documentation pages under `/docs`, served without external resources."""
