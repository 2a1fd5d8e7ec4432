"""The KV memory of one request in an encoder-decoder."""


def kept(config: dict[str, int], source: int, written: int) -> int:
    """Return the bytes of keys and values after the encoder read `source` tokens and the decoder wrote `written`.

    Each of the `num_decoder_layers` stores a key and a value of `num_heads` heads with `d_kv` numbers, four bytes each:
    for every token that was written, as any decoder does, and for every token of the source, for cross-attention.
    """
    token = 2 * config["num_heads"] * config["d_kv"] * 4
    return config["num_decoder_layers"] * (source + written) * token
