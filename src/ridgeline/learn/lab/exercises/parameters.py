"""The parameters of a model, from its config."""


def parameters(config: dict[str, int]) -> int:
    """Return the number of parameters of a Llama model, whose head is separate from its embedding.

    Each layer has matrices for q, k, v and the output of attention, three for the feed-forward part, and two norms;
    there is one final norm. The config has hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
    num_key_value_heads, head_dim and vocab_size.
    """
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * config["intermediate_size"] + 2 * hidden
    return config["num_hidden_layers"] * layer + hidden + 2 * config["vocab_size"] * hidden
