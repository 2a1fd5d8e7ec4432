"""The chunks of a long prompt that runs next to users who are decoding."""


def chunks(prompt: int, budget: int, users: int) -> list[int]:
    """Return the number of prompt positions in each step, first to last.

    A step has at most `budget` positions. Each of the users, who arrived before, has one of them; the prompt has the
    rest.
    """
    room = budget - users
    return [min(room, prompt - done) for done in range(0, prompt, room)]
