"""How a row's run was set up: model, hardware, mesh, batches, framework."""
