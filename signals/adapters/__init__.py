"""What engines expose in Prometheus form, turned into samples."""
