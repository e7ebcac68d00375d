"""Helpers that run inside an engine's server: one file each, without dependencies, made to be copied."""
