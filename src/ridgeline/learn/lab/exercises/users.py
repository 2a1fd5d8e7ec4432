"""Users on a GPU: whole requests in whole pages."""


def users(left: float, model: str, context: int, page: int) -> int:
    """Return the number of requests of `context` tokens whose keys and values fit into `left` bytes.

    Each request has whole pages of `page` tokens. A token takes 131,072 bytes in llama-3-8b and 327,680 in llama-3-70b.
    Only whole pages and whole users count.
    """
    token = {"llama-3-8b": 131_072, "llama-3-70b": 327_680}[model]
    pages = int(left // (token * page))
    return pages // -(-context // page)
