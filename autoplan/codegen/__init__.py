"""Writes the module that one rank runs, as readable Python, and builds it for a model.

``pipeline.emit_program(graph, plan)`` decides everything and touches no model.
``build.build_module`` makes the ``nn.Module`` from the emitted source and from parameters that the
caller supplies, so that the caller decides whether they are DTensors, plain tensors or meta
tensors.
"""
