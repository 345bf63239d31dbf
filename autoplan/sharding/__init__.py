"""How operators split over one mesh axis, and what a change of placement costs in messages."""
