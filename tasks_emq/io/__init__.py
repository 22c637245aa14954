"""The only part that talks to a server."""
