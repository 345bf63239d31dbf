"""Facts about devices and clusters, each with its provenance."""
