"""How many of which devices a training needs, and how its speed and memory follow its sizes."""
