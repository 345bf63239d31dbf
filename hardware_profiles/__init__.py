"""Facts about devices and clusters, each with its provenance.

A profile is a TOML file in which every figure says where it comes from: ``datasheet`` (the
vendor), ``measured`` (this very figure was observed), ``fitted`` (a parameter of the cost model,
chosen to meet measurements) or ``assumed`` (a pessimistic choice where nothing was measured).
``load.load`` checks a file strictly and turns it into a ``spec.ClusterSpec``.
"""
