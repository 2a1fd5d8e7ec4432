"""The bytes that a decode step of one user must move, from a Llama config, in bf16."""


def decode_bytes(config: dict[str, int], context: int) -> int:
    """Return the bytes of weights and of keys and values that one step reads or writes, at two bytes per number.

    The step is for one user with `context` tokens, the new one included. It reads one row of the embedding and all of
    the head. Each layer has matrices for q, k, v and the output, three for the feed-forward part, and two norms; there
    is one final norm. The step reads keys and values of the whole context, and writes those of the new token. The
    config has hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim and
    vocab_size.
    """
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * config["intermediate_size"] + 2 * hidden
    weights = config["num_hidden_layers"] * layer + hidden + hidden + config["vocab_size"] * hidden
    kept = 2 * config["num_hidden_layers"] * keys
    return 2 * (weights + (context + 1) * kept)
