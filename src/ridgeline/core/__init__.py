"""What a model is: the ops that compute it, the families that connect them, checkpoints and text."""
