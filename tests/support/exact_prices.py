"""The uncertainty of a simulation whose predicted step times are taken as exact."""

from ridgeline.insight.simulate.simulation_query import PriceUncertainty

EXACT = PriceUncertainty.of_share(0.0, "a test")
