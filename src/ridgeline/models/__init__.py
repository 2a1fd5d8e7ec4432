"""Model families: a config.json becomes a module wired from ops.

`fields.py` reads config.json strictly, `decoder.py` is the transformer that most families are, and each family's file
says only what is its own. `family.py` is what is said of a family, `families.py` lists all of them; `bill.py` counts
their parameters, `recipes/` says in what formats they are stored. Models that draw have contracts of their own:
`denoiser.py` and `image_autoencoder.py`.
"""

from ridgeline.models.building import build, build_to_run
from ridgeline.models.common.family import Family
from ridgeline.models.common.fields import Fields, ModelRefused
from ridgeline.models.registry import ENCODERS, FAMILIES, SPEECH, family_of

__all__ = ["ENCODERS", "FAMILIES", "SPEECH", "Family", "Fields", "ModelRefused", "build", "build_to_run", "family_of"]
