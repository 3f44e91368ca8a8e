"""The HTTP routes: each file of a resource parses, calls a use case and responds; `routes` stands at its end."""
