"""Models to plan for: published presets, Hugging Face configs, and the user's own factories.

Models are built without weights, on the meta device where autoplan builds them itself, and without
the network. Importing this package costs nothing; torch and transformers load on first use.
"""

from autoplan.zoo.configs import from_config
from autoplan.zoo.factories import from_factory
from autoplan.zoo.presets import build, names
from autoplan.zoo.subject import ModelUnderPlan

__all__ = ["ModelUnderPlan", "build", "from_config", "from_factory", "names"]
