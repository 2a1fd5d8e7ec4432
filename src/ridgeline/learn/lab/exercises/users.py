"""Users on a card: whole requests in whole pages."""


def users(left: float, model: str, context: int, page: int) -> int:
    """Requests of `context` tokens whose keys and values fit into `left` bytes, each in whole pages of `page` tokens.

    A token keeps 131,072 bytes of llama-3-8b and 327,680 of llama-3-70b. Pages are whole, and so are users.
    """
    token = {"llama-3-8b": 131_072, "llama-3-70b": 327_680}[model]
    pages = int(left // (token * page))
    return pages // -(-context // page)
