"""Tasks on Redis or Valkey that are never lost."""
