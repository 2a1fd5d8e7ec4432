"""Model families: a config.json becomes a module wired from ops.

families/ has a file for each family, common/ what they share: `fields.py` reads config.json strictly, `decoder.py` is
the transformer that most families are, `family.py` says how a family is written, `parameter_breakdown.py` counts
parameters, `recipes/` says in what formats they are stored. `denoiser.py` and `image_autoencoder.py` are contracts of
models that draw. `registry.py` lists the families and finds that of a config, `building.py` builds its model.
"""

from ridgeline.core.models.building import build, build_to_run
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields, ModelRefused
from ridgeline.core.models.registry import ENCODERS, FAMILIES, SPEECH, family_of

__all__ = ["ENCODERS", "FAMILIES", "SPEECH", "Family", "Fields", "ModelRefused", "build", "build_to_run", "family_of"]
