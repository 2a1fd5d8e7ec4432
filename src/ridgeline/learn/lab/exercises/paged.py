"""The pages that a request takes, and the empty places in them."""


def paged(length: int, page: int) -> tuple[int, int]:
    """Return the number of pages of `page` tokens that hold `length` tokens, and the number of empty places in them."""
    pages = -(-length // page)
    return pages, pages * page - length
