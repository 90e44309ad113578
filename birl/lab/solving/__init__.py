"""An agent for an environment, and nothing else to decide: `birl solve`."""
