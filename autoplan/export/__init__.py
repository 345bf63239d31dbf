"""Plans as configurations of other training frameworks, with what those cannot express."""
