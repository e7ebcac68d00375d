"""Benchmarks of the xDS server; see docs/xds.md for what they measure and found."""
