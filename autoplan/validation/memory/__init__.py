"""Device memory of a run: what is kept, what passes, what the allocator adds."""
