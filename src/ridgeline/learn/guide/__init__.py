"""The parts of the guide that are computed or checked: its numbers, from the cost model, and its quiz questions."""
