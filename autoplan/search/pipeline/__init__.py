"""The whole decision: meshes with pipelines, stages, schedules, what each block recomputes."""
