"""A conformant xDS control plane, and the translator from routing tables to Envoy's resources."""
