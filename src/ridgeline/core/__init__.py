"""The definition of a model: the ops that compute it, the families that connect them, its checkpoint and its text."""
