"""The bytes of a matrix in narrow numbers, scales included."""


def stored_bytes(outputs: int, inputs: int, bits: int, group: int, scale_bits: int) -> float:
    """Return the bytes of a matrix of `outputs` rows with `inputs` numbers of `bits` bits.

    In each row every `group` numbers share a scale of `scale_bits` bits; the last group may be shorter, and has a scale
    too.
    """
    scales = outputs * -(-inputs // group)
    return (outputs * inputs * bits + scales * scale_bits) / 8
