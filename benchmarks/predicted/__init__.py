"""Step time and live bytes of plans, predicted from a profile of this machine and measured."""
