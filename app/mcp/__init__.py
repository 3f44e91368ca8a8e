"""The vault as tools of the Model Context Protocol, over stdio and over HTTP at `/mcp`.

Each tool makes requests to the API, with the names and checks of the API's operations. The server keeps no state.
"""
