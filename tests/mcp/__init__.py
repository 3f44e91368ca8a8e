"""The vault as tools of the Model Context Protocol."""
