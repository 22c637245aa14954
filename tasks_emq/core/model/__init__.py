"""What the server's scripts do, written once more in Python: what the tests hold them against."""
