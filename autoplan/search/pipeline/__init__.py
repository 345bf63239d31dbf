"""The whole decision: mesh, stages, schedule and what each block recomputes, pipeline or not."""
