"""Model families: each builds a model from ops, as a config.json describes it.

families/ has one file per family. common/ has the parts that they share: `fields.py` reads config.json strictly,
`decoder.py` is the transformer that most families are, `family.py` explains how to write a family,
`parameter_breakdown.py` counts parameters, and `recipes/` chooses the format in which each matrix is stored.
`denoiser.py` and `image_autoencoder.py` are the contracts of models that generate images. `registry.py` lists the
families and finds the family of a config; `building.py` builds its model.
"""

from ridgeline.core.models.building import build, build_to_run
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields, ModelRefused
from ridgeline.core.models.registry import ENCODERS, FAMILIES, SPEECH, family_of

__all__ = ["ENCODERS", "FAMILIES", "SPEECH", "Family", "Fields", "ModelRefused", "build", "build_to_run", "family_of"]
