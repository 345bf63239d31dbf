"""What sources publish of a training run: one row of a table, as it stands there."""
