"""The vault as tools of the Model Context Protocol, over stdio and over HTTP at `/mcp`.

Each tool is a request to the API, in the names and with the checks of its operation. The server keeps no state.
"""
