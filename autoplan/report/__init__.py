"""Shows a plan to people (``text``) and to programs (``summary``); nothing is computed anew here."""
