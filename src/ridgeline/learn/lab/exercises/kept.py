"""What an encoder-decoder keeps of one request."""


def kept(config: dict[str, int], source: int, written: int) -> int:
    """Bytes of keys and values after so many tokens were read by the encoder and written by the decoder.

    Each of the `num_decoder_layers` keeps a key and a value of `num_heads` heads with `d_kv` numbers, four bytes each:
    for every token that was written, as any decoder does, and for every token of the source, to look at.
    """
    token = 2 * config["num_heads"] * config["d_kv"] * 4
    return config["num_decoder_layers"] * (source + written) * token
