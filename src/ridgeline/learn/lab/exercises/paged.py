"""How many pages a request takes, and what is empty in them."""


def paged(length: int, page: int) -> tuple[int, int]:
    """Pages of `page` tokens that hold `length` tokens, and the places in them that hold nothing."""
    pages = -(-length // page)
    return pages, pages * page - length
