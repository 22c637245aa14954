"""The process that takes jobs and runs them."""
