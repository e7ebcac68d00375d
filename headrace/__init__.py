"""Headrace: a global load balancer for LLM inference (the product shell around the three core packages)."""

__version__ = "0.1.0"
