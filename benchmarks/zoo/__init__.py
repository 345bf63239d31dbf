"""Every model of the zoo: traced, planned on 8 and 64 GPUs, and trained as a tiny twin."""
