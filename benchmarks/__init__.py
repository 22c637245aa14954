"""Measures this project and its peers on one machine; see docs/benchmarks.md."""
