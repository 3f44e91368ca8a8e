"""The vault as tools of the Model Context Protocol, over stdio and over HTTP at `/mcp`.

Each tool makes a request to the API, with the names and checks of the API's operation. The server keeps no state.
"""
