"""The control plane: policy, signals and plan in, snapshots for every Envoy out."""
