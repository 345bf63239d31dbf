"""Shows a plan to people (``text``) and to programs (``summary``); computes nothing anew."""
