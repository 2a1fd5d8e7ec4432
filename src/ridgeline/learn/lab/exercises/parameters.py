"""A model's parameters from its config."""


def parameters(config: dict[str, int]) -> int:
    """Parameters of a model of Llama's kind, whose head is not its embedding.

    Each layer has matrices for q, k, v and the output of attention, three for the feed-forward part, and two norms; one
    norm stands at the end. The config has hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
    num_key_value_heads, head_dim and vocab_size.
    """
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * config["intermediate_size"] + 2 * hidden
    return config["num_hidden_layers"] * layer + hidden + 2 * config["vocab_size"] * hidden
